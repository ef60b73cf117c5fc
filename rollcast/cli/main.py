"""Define the command line. Each group is a thin module, imported when it is used, so that help appears at once."""

from __future__ import annotations

import gc
import os
import select
import sys
from typing import Any, NoReturn

from cyclopts import App, ArgumentCollection, CoercionError, CycloptsError, Group
from cyclopts.config import Env

from rollcast.runtime.errors import RollcastError
from rollcast.runtime.install import check_packages, lead_children_here
from rollcast.runtime.version import software_version

#: While a role is imported: with Python's own, the garbage collector takes a sixth of the processor time.
_GC_THRESHOLDS = (50_000, 20, 50)


class _Variables(Env):
    """Name options in the environment with underscores alone: a shell cannot export ROLLCAST_PLAN-MEMORY_JSON."""

    def _prefix(self, commands: tuple[str, ...]) -> str:
        return str(super()._prefix(commands)).replace("-", "_")


def _whole_numbers(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Reject a fraction where a whole number is needed: cyclopts rounds it, so that S = 2.5 would plan for S = 2."""
    for argument in arguments:
        if argument.hint in (int, int | None):
            for token in argument.tokens:
                if "." in token.value:
                    raise CoercionError(token=token, argument=argument, target_type=int)


app = App(
    name="rollcast",
    help="Train language models with reinforcement learning on GPUs you don't own.",
    version=lambda: f"rollcast {software_version()}",
    group_commands=Group("Options", sort_key=99),  # of those that are in no group: --help and --version
    help_format="plaintext",  # another one costs 30 ms of imports
    config=(_Variables("ROLLCAST_"), _whole_numbers),
    help_epilogue="Every option can also be set by an environment variable: ROLLCAST_UP_DRY_RUN sets `up --dry-run`.",
)
#: Heading in the help -> command -> function and help. A function is imported when its command is used.
_COMMANDS = {
    "Begin": {
        "init": (
            "start.init:init",
            "List starting points, or write the commented configuration of one into this folder.",
        ),
        "up": ("up:up", "Run a coordinator, a learner, an origin and peers on this machine until the run is finished."),
        "doctor": ("start.doctor:doctor", "Check what this machine has and lacks for each role."),
        "config": ("config:app", "Show and validate configuration files, and print where they are."),
        "plan-memory": (
            "start.plan_memory:plan_memory",
            "Estimate how much memory a run needs and which hardware fits it.",
        ),
        "tasks": ("tasks.app:app", "Try a task: score answers to some of its problems."),
        "curate": ("data.curate:curate", "Prepare a data set for training."),
        "sft": ("data.sft:sft", "Train a model on chats or completions before reinforcement learning."),
    },
    "Watch and steer a run": {
        "dashboard": (
            "dashboard:dashboard",
            "Print or open the address of a run's dashboard, signed in with the run's admin key.",
        ),
        "run": ("live.control:app", "Show what a run does now; pause, resume or finish it."),
        "workers": ("live.workers:app", "List, drain, ban, enable and pin the workers of a run."),
        "invite": ("live.invite:app", "Create, list and revoke invites for donors."),
        "token": ("live.token:app", "Create, list and revoke access tokens for a run's dashboard and API."),
        "broadcast": ("live.broadcast:app", "Show how the newest version spreads to the peers."),
        "profile": ("live.profile:profile", "Trace a run's next learner steps with jax.profiler."),
    },
    "Use its results": {
        "samples": ("run.samples:samples", "Show completions of a run and how they were scored."),
        "eval": ("run.evaluate:evaluate", "Evaluate a run's newest checkpoint and print pass@k."),
        "export": ("run.export:export", "Export a run's policy as a model that other software can load."),
        "report": ("run.report:report", "Write a report on a run as one HTML file."),
    },
    "Find out what happened": {
        "explain": (
            "explain:explain",
            "Show the history of a rollout, lease, peer, version or step, or what an error means.",
        ),
        "why": ("explain:why", "Break down the learner's wall time by cause and by the peers it waited for."),
        "replay": ("explain:replay", "Replay a run's flight record and check that every decision is the same."),
        "audit": ("trust.audit:audit", "Replay the evidence against peers, and check that each verdict is the same."),
    },
    "Choose machines": {
        "capacity": ("capacity.app:app", "Choose which workers to turn on and explain the choice."),
        "simulate": ("simulation.simulate:simulate_fleet", "Simulate a fleet and its faults on virtual time."),
        "study": ("simulation.study:app", "Simulate many fleets and compare them."),
    },
    "Donate a machine": {
        "peer": ("peer.app:app", "Run a peer on a spare machine (or the origin) and control it."),
    },
    "Keep and move a run": {
        "backup": ("run.backup:backup", "Back up a run to a new folder while its coordinator is running."),
        "restore": ("run.backup:restore", "Restore a run folder from a backup."),
        "migrate": ("run.backup:migrate", "Move a stopped run between SQLite and PostgreSQL."),
    },
    "Start single processes": {
        "coordinator": ("roles:coordinator", "Run the coordinator."),
        "learner": ("roles:learner", "Run the learner."),
        "gateway": ("roles:gateway", "Run a gateway, which serves peers for a coordinator."),
        "scorer": ("roles:scorer", "Run a scorer, which scores completions over HTTP."),
        "cell": ("roles:cell", "Run the uplink of a cell, which works for another coordinator."),
        "identity": ("peer.identity:identity", "Show an identity file; create it if it is missing."),
    },
}
#: Commands whose --version is one of the policy.
_OWN_VERSION = ("export", "samples")
for _place, (_heading, _commands) in enumerate(_COMMANDS.items()):
    _group = Group(_heading, sort_key=_place)
    for _name, (_function, _help) in _commands.items():
        _flags: dict[str, Any] = {"version_flags": ()} if _name in _OWN_VERSION else {}
        app.command(f"rollcast.cli.{_function}", name=_name, help=_help, group=_group, **_flags)
app.register_install_completion_command()


def main() -> None:
    """Entry point of the ``rollcast`` script."""
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        check_packages()
        lead_children_here()
        status = app(exit_on_error=False, print_error=False)
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:
        _end_if_output_closed()
        raise
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # rich ends the program with status 1
            sys.exit(0)
        raise
    except CycloptsError as error:
        from rollcast.cli.start.usage import usage_error

        _fail(usage_error(error))
    except RollcastError as error:
        _fail(error)
    except ImportError as error:
        from rollcast.cli.start.extras import missing_extra

        if (missing := missing_extra(error)) is None:
            raise
        _fail(missing)


def _fail(error: RollcastError) -> NoReturn:
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
