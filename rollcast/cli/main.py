"""The command line. Each group is a thin module that is imported when it is used, so that help answers at once."""

from __future__ import annotations

import os
import select
import sys

from cyclopts import App, CycloptsError
from cyclopts.config import Env

from rollcast.runtime.errors import ConfigError, RollcastError
from rollcast.runtime.version import software_version

app = App(
    name="rollcast",
    help="Reinforcement-learning post-training of language models on machines that are far apart and not yours.",
    version=lambda: f"rollcast {software_version()}",
    help_format="plaintext",  # another one costs 30 ms of imports
    config=Env("ROLLCAST_"),
    help_epilogue="Every option can be set as an environment variable too: --dry-run of `up` is ROLLCAST_UP_DRY_RUN.",
)
app.command(
    "rollcast.cli.up:up", name="up", help="Run coordinator, learner, origin and peers on this machine until done."
)
app.command("rollcast.cli.roles:coordinator", name="coordinator", help="Run the coordinator.")
app.command("rollcast.cli.roles:learner", name="learner", help="Run the learner.")
app.command(
    "rollcast.cli.peer.app:app",
    name="peer",
    help="Run a peer on a spare machine (or the origin), and stay in charge of it.",
)
app.command("rollcast.cli.run.evaluate:evaluate", name="eval", help="Print pass@k of a run's newest checkpoint.")
app.command(
    "rollcast.cli.run.export:export",
    name="export",
    version_flags=[],  # its own --version is one of the policy
    help="Write a run's policy as a model for other software.",
)
app.command(
    "rollcast.cli.run.plan_memory:plan_memory",
    name="plan-memory",
    help="Say what a run needs in memory, and what holds it.",
)
app.command("rollcast.cli.data.curate:curate", name="curate", help="Prepare a data set for training.")
app.command("rollcast.cli.run.samples:samples", name="samples", help="Show completions of a run with their verdicts.")
app.command(
    "rollcast.cli.run.backup:backup", name="backup", help="Copy a run to a new folder while its coordinator works."
)
app.command("rollcast.cli.run.backup:restore", name="restore", help="Make a run folder from a backup.")
app.command("rollcast.cli.capacity.app:app", name="capacity", help="Choose which workers to turn on, and say why.")
app.command(
    "rollcast.cli.run.workers:app", name="workers", help="Show who works for a run; drain, ban, enable, pin them."
)
app.command("rollcast.cli.run.invite:app", name="invite", help="Make one line for a donor; list and revoke invites.")
app.command("rollcast.cli.dashboard:dashboard", name="dashboard", help="Open the page of a run, as its operator.")
app.command("rollcast.cli.run.token:app", name="token", help="Make, list and revoke tokens for a run's page and API.")
app.command("rollcast.cli.run.broadcast:app", name="broadcast", help="Show how the newest version spreads.")
app.command("rollcast.cli.explain:explain", name="explain", help="Tell the story of a rollout, lease, peer or version.")
app.command(
    "rollcast.cli.explain:why", name="why", help="Say where the learner's wall time went, and whose fault it was."
)
app.command("rollcast.cli.explain:replay", name="replay", help="Check that a run's record leads to the same decisions.")
app.command("rollcast.cli.run.report:report", name="report", help="Write a run as one HTML file.")
app.command("rollcast.cli.peer.identity:identity", name="identity", help="Show an identity file, making it if missing.")
app.command("rollcast.cli.config:app", name="config", help="Show or check configuration files, or say where they are.")
app.command(
    "rollcast.cli.run.simulate:simulate_fleet", name="simulate", help="Simulate a fleet and its faults on virtual time."
)
app.register_install_completion_command()


def main() -> None:
    """Entry point of the ``rollcast`` script."""
    try:
        status = app(exit_on_error=False)
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:
        _end_if_nobody_reads()
        raise
    except CycloptsError:  # printed already
        sys.exit(ConfigError.exit_code)
    except RollcastError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def _end_if_nobody_reads() -> None:
    """Whoever read what we print, `head` for example, has seen enough: that is no failure."""
    output = sys.stdout.fileno()
    poll = select.poll()
    poll.register(output, 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        sys.exit(0)


if __name__ == "__main__":
    main()
