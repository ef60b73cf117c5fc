"""`rollcast peer ...`: what the owner of a spare machine types. Light: `status` must answer at once."""

from __future__ import annotations

from cyclopts import App

app = App(name="peer", help="Give a spare machine's time to a run, and stay in charge of it.")
app.command("rollcast.cli.roles:peer", name="run", help='Run a peer, or with role = "origin" the origin.')
app.command("rollcast.cli.peer.control:status", name="status", help="Say what this machine does now, and why.")
app.command("rollcast.cli.peer.control:pause", name="pause", help="Stop at once: no work, no chunks.")
app.command("rollcast.cli.peer.control:resume", name="resume", help="Work again.")
app.command("rollcast.cli.peer.control:finish", name="finish", help="Complete what is held, then stop.")
app.command("rollcast.cli.peer.identity:app", name="id", help="This machine's identity: show, back up, restore.")
app.command("rollcast.cli.peer.check:check", name="check", help="Measure this machine, and what it is worth to a run.")
app.command("rollcast.cli.peer.join:join", name="join", help="Take part in a run with an invite, in the background.")
app.command("rollcast.cli.peer.limits:app", name="limits", help="What this machine may be used for: show, set, reset.")
app.command("rollcast.cli.peer.page:page", name="page", help="Print, or open, the address of this machine's page.")
app.command("rollcast.cli.peer.logs:logs", name="logs", help="Show what the peer wrote down.")
app.command("rollcast.cli.peer.bugreport:bugreport", name="bugreport", help="Pack up what a bug report needs.")
app.command("rollcast.cli.peer.leave:leave", name="leave", help="Take this machine out of the run, and clear up.")
app.command("rollcast.cli.peer.service:app", name="service", help="Let this machine's service manager run the peer.")
