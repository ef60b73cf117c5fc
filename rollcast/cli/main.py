"""Define the command line. Each group is a thin module, imported when it is used, so that help appears at once."""

from __future__ import annotations

import os
import select
import sys

from cyclopts import App, CycloptsError
from cyclopts.config import Env

from rollcast.runtime.errors import ConfigError, RollcastError
from rollcast.runtime.install import check_packages
from rollcast.runtime.version import software_version


class _Variables(Env):
    """Name options in the environment with underscores alone: a shell cannot export ROLLCAST_PLAN-MEMORY_JSON."""

    def _prefix(self, commands: tuple[str, ...]) -> str:
        return str(super()._prefix(commands)).replace("-", "_")


app = App(
    name="rollcast",
    help="Train language models with reinforcement learning on GPUs you don't own.",
    version=lambda: f"rollcast {software_version()}",
    help_format="plaintext",  # another one costs 30 ms of imports
    config=_Variables("ROLLCAST_"),
    help_epilogue="Every option can also be set by an environment variable: ROLLCAST_UP_DRY_RUN sets `up --dry-run`.",
)
app.command(
    "rollcast.cli.up:up",
    name="up",
    help="Run a coordinator, a learner, an origin and peers on this machine until the run is finished.",
)
app.command("rollcast.cli.roles:coordinator", name="coordinator", help="Run the coordinator.")
app.command(
    "rollcast.cli.roles:cell", name="cell", help="Run the uplink of a cell, which works for another coordinator."
)
app.command("rollcast.cli.roles:gateway", name="gateway", help="Run a gateway, which serves peers for a coordinator.")
app.command("rollcast.cli.roles:scorer", name="scorer", help="Run a scorer, which scores completions over HTTP.")
app.command("rollcast.cli.roles:learner", name="learner", help="Run the learner.")
app.command(
    "rollcast.cli.peer.app:app",
    name="peer",
    help="Run a peer on a spare machine (or the origin) and control it.",
)
app.command(
    "rollcast.cli.data.sft:sft", name="sft", help="Train a model on chats or completions, for a run to begin with."
)
app.command(
    "rollcast.cli.run.evaluate:evaluate", name="eval", help="Evaluate a run's newest checkpoint and print pass@k."
)
app.command(
    "rollcast.cli.run.profile:profile", name="profile", help="Trace a run's next learner steps with jax.profiler."
)
app.command(
    "rollcast.cli.start.doctor:doctor",
    name="doctor",
    help="Check what this machine has and lacks for each role.",
)
app.command(
    "rollcast.cli.start.init:init",
    name="init",
    help="List starting points, or write the commented configuration of one into this folder.",
)
app.command(
    "rollcast.cli.run.export:export",
    name="export",
    version_flags=[],  # its own --version is one of the policy
    help="Export a run's policy as a model that other software can load.",
)
app.command(
    "rollcast.cli.run.plan_memory:plan_memory",
    name="plan-memory",
    help="Estimate how much memory a run needs and which hardware fits it.",
)
app.command("rollcast.cli.data.curate:curate", name="curate", help="Prepare a data set for training.")
app.command(
    "rollcast.cli.run.samples:samples", name="samples", help="Show completions of a run and how they were scored."
)
app.command("rollcast.cli.tasks.app:app", name="tasks", help="Try a task: score answers to some of its problems.")
app.command(
    "rollcast.cli.run.backup:backup",
    name="backup",
    help="Back up a run to a new folder while its coordinator is running.",
)
app.command("rollcast.cli.run.backup:restore", name="restore", help="Restore a run folder from a backup.")
app.command(
    "rollcast.cli.run.backup:migrate",
    name="migrate",
    help="Move a stopped run between SQLite and PostgreSQL.",
)
app.command(
    "rollcast.cli.capacity.app:app", name="capacity", help="Choose which workers to turn on and explain the choice."
)
app.command(
    "rollcast.cli.run.workers:app", name="workers", help="List, drain, ban, enable and pin the workers of a run."
)
app.command("rollcast.cli.run.invite:app", name="invite", help="Create, list and revoke invites for donors.")
app.command(
    "rollcast.cli.dashboard:dashboard",
    name="dashboard",
    help="Print or open the address of a run's dashboard, signed in with the run's admin key.",
)
app.command(
    "rollcast.cli.run.token:app",
    name="token",
    help="Create, list and revoke access tokens for a run's dashboard and API.",
)
app.command(
    "rollcast.cli.run.broadcast:app", name="broadcast", help="Show how the newest version spreads to the peers."
)
app.command(
    "rollcast.cli.explain:explain", name="explain", help="Show the history of a rollout, lease, peer, version or step."
)
app.command(
    "rollcast.cli.explain:why",
    name="why",
    help="Break down the learner's wall time by cause and by the peers it waited for.",
)
app.command(
    "rollcast.cli.explain:replay",
    name="replay",
    help="Replay a run's flight record and check that every decision is the same.",
)
app.command(
    "rollcast.cli.trust.audit:audit",
    name="audit",
    help="Replay the evidence against peers, and check that each verdict is the same.",
)
app.command("rollcast.cli.run.report:report", name="report", help="Write a report on a run as one HTML file.")
app.command(
    "rollcast.cli.peer.identity:identity", name="identity", help="Show an identity file; create it if it is missing."
)
app.command(
    "rollcast.cli.config:app", name="config", help="Show and validate configuration files, and print where they are."
)
app.command("rollcast.cli.simulation.study:app", name="study", help="Simulate many fleets and compare them.")
app.command(
    "rollcast.cli.simulation.simulate:simulate_fleet",
    name="simulate",
    help="Simulate a fleet and its faults on virtual time.",
)
app.register_install_completion_command()


def main() -> None:
    """Entry point of the ``rollcast`` script."""
    try:
        check_packages()
        status = app(exit_on_error=False)
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:
        _end_if_output_closed()
        raise
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # rich ends the program with status 1
            sys.exit(0)
        raise
    except CycloptsError:  # cyclopts has printed it already
        sys.exit(ConfigError.exit_code)
    except RollcastError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def _end_if_output_closed() -> None:
    """End with status 0 if the reader of our output has closed it, as `head` does: that is not a failure."""
    output = sys.stdout.fileno()
    poll = select.poll()
    poll.register(output, 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        sys.exit(0)


if __name__ == "__main__":
    main()
