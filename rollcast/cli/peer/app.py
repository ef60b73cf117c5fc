"""`rollcast peer`: the commands of a spare machine's owner. Imports nothing heavy, so that `status` answers at once."""

from __future__ import annotations

from cyclopts import App

app = App(name="peer", help="Share a spare machine with a run and control what it does.")
app.command("rollcast.cli.roles:peer", name="run", help="Run a peer, or the origin, in this terminal.")
app.command("rollcast.cli.peer.control:status", name="status", help="Show what this machine is doing and why.")
app.command("rollcast.cli.peer.control:pause", name="pause", help="Pause at once: no work and no relaying.")
app.command("rollcast.cli.peer.control:resume", name="resume", help="Resume work after a pause.")
app.command("rollcast.cli.peer.control:finish", name="finish", help="Finish the current work, then stop.")
app.command("rollcast.cli.peer.identity:app", name="id", help="Show, back up or restore this machine's identity.")
app.command(
    "rollcast.cli.peer.check:check", name="check", help="Measure this machine and check whether it is fit for a run."
)
app.command("rollcast.cli.peer.join:join", name="join", help="Join a run with an invite and run in the background.")
app.command(
    "rollcast.cli.peer.limits:app", name="limits", help="Show, set or reset limits on what this machine is used for."
)
app.command("rollcast.cli.peer.page:page", name="page", help="Print or open the address of this machine's own page.")
app.command("rollcast.cli.peer.logs:logs", name="logs", help="Show the peer's log.")
app.command(
    "rollcast.cli.peer.bugreport:bugreport", name="bugreport", help="Collect what a bug report needs in one archive."
)
app.command(
    "rollcast.cli.peer.leave:leave", name="leave", help="Leave the run and remove the peer's state from this machine."
)
app.command("rollcast.cli.peer.service:app", name="service", help="Let this machine's service manager run the peer.")
