"""Run the main job with real processes under real kills, and compare it with a clean run of the same length.

The coordinator is killed by SIGKILL repeatedly, the learner in the middle of training, the origin and a peer once each;
one peer is asked to stop and restarted, one is suspended until it counts as lost and its leases have expired.
Coordinator, learner and origin are restarted by `rollcast up`'s own supervision. Afterwards the ledger's rows, the
peers' records of their acknowledgements, the flight record and the stories are checked from outside.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import runs
from bench.fleet.aftermath import check_run
from bench.machine import Outcome
from rollcast.cli.processes import Fleet

DRAINED, SUSPENDED, KILLED = "peer-1", "peer-2", "peer-3"
LEASE_DEADLINE_S = 10.0
SUSPENDED_S = 12.0  # longer than the timeouts of heartbeats and leases
SETTINGS = (
    "peers=3",
    f"coordinator.lease.deadline_s={LEASE_DEADLINE_S}",
    "coordinator.store.margin_steps=100000",  # keeps all rows for the check afterwards
    "learner.checkpoint.every_steps=10",  # so that a killed learner has steps to repeat
    "restarts_max=100",
    "start_timeout_s=300",
    "stop_timeout_s=60",
)

Status = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=Path("configs/local.toml"))
    parser.add_argument("--set", action="append", default=[], help="override a setting of the file: section.key=value")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--kills", type=int, default=4, help="coordinator kills besides one at each end of the run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults and their times")
    parser.add_argument("--keep", type=Path, help="keep the run folders in this folder")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, tried at each status from its step on until ``act`` returns that it has happened."""

    step: int
    what: str
    act: Callable[[Status], bool]


class Chaos(runs.Story):
    """Inject every fault once its step has come, and undo what has to be undone."""

    def __init__(self, journals: Path, *, steps: int, kills: int, rng: random.Random) -> None:
        super().__init__()
        self._journals = journals
        self._suspended_until_s = 0.0
        draw = [
            (self._kill_in_warm_start, "kill the coordinator in the warm start", 0.0, 0.0),
            (self._kill_at_the_end, "kill the coordinator while it ends the run", 1.0, 1.0),
            *((self._kill_coordinator, "kill the coordinator", 0.05, 0.95) for _ in range(kills)),
            (lambda _status: self._kill("learner"), "kill the learner", 0.3, 0.7),
            (lambda _status: self._kill("origin"), "kill the origin", 0.1, 0.9),
            (self._drain, f"stop {DRAINED}", 0.1, 0.4),
            (self._suspend, f"suspend {SUSPENDED}", 0.1, 0.5),
            (self._kill_peer, f"kill {KILLED}", 0.4, 0.7),
        ]
        faults = [Fault(int(steps * rng.uniform(low, high)), what, act) for act, what, low, high in draw]
        self.faults = sorted(faults, key=lambda fault: fault.step)
        self.done: list[str] = []

    def begin(self, fleet: Fleet) -> None:
        """Make peers record every acknowledgement, before any process starts."""
        for number in range(1, fleet.config.peers + 1):
            name = f"peer-{number}"
            journal = str(self._journals / f"{name}.txt")
            fleet.programs[name] = [sys.executable, "-m", "bench.programs.journal_peer", journal]
        fleet.on_restart = lambda restart: print(restart, file=sys.stderr)

    def on_status(self, status: Status, ended: Mapping[str, int]) -> None:
        super().on_status(status, ended)
        assert self.fleet is not None
        if self._suspended_until_s and time.monotonic() > self._suspended_until_s:
            self._suspended_until_s = 0.0
            self._signal(SUSPENDED, signal.SIGCONT)
        for name in (DRAINED, KILLED):
            if name in ended and int(status["step"]) < int(status["steps"]):
                self.fleet.restart(name)
        for fault in list(self.faults):
            if int(status["step"]) >= fault.step and fault.act(status):
                print(f"step {status['step']}: {fault.what}", file=sys.stderr)
                self.faults.remove(fault)
                self.done.append(fault.what)
                break  # one at a time: the next status shows its effect

    def _kill_coordinator(self, _status: Status) -> bool:
        return self._kill("coordinator")

    def _kill_in_warm_start(self, status: Status) -> bool:
        return status["learner_phase"] == "warm_start" and self._kill("coordinator")

    def _kill_at_the_end(self, status: Status) -> bool:
        return status["learner_phase"] == "finished" and self._kill("coordinator")

    def _drain(self, status: Status) -> bool:
        return _holds_leases(status, DRAINED) and self._signal(DRAINED, signal.SIGTERM)

    def _kill_peer(self, status: Status) -> bool:
        return _holds_leases(status, KILLED) and self._kill(KILLED)

    def _suspend(self, status: Status) -> bool:
        if not _holds_leases(status, SUSPENDED):
            return False
        self._suspended_until_s = time.monotonic() + SUSPENDED_S
        return self._signal(SUSPENDED, signal.SIGSTOP)

    def _kill(self, name: str) -> bool:
        return self._signal(name, signal.SIGKILL)

    def _signal(self, name: str, number: signal.Signals) -> bool:
        assert self.fleet is not None
        process = self.fleet.processes[name]
        if process.poll() is not None:
            return False
        process.send_signal(number)
        return True


def _holds_leases(status: Status, name: str) -> bool:
    return any(peer["name"] == name and peer["open_slots"] and peer["state"] != "lost" for peer in status["peers"])


def run(arguments: argparse.Namespace) -> Outcome:
    settings = [*SETTINGS, f"coordinator.run.steps={arguments.steps}", *arguments.set]
    with tempfile.TemporaryDirectory(prefix="rollcast-chaos-") as temporary:
        folder: Path = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        begun_s = time.monotonic()
        clean = runs.run(arguments.config, folder, settings, runs.Story())
        clean_ended_s = time.monotonic()
        chaos = Chaos(folder, steps=arguments.steps, kills=arguments.kills, rng=random.Random(arguments.seed))
        summary = runs.run(arguments.config, folder, settings, chaos)
        ended_s = time.monotonic()
        assert chaos.fleet is not None
        aftermath = check_run(Path(summary["run_folder"]), sorted(folder.glob("peer-*.txt")), killed=KILLED)
    figures = {
        **aftermath,
        "finished": float(summary["phase"] == "finished" and aftermath["batches"] == arguments.steps),
        "reward_clean": clean["reward_after"],
        "reward_chaos": summary["reward_after"],
        "reward_difference": abs(clean["reward_after"] - summary["reward_after"]),
        "restarts": chaos.fleet.restarts.total(),
        "faults_done": len(chaos.done),
        "faults_left": len(chaos.faults),
        "wall_s": ended_s - clean_ended_s,
        "wall_clean_s": clean_ended_s - begun_s,
    }
    described = {"config": str(arguments.config), "set": arguments.set, "steps": arguments.steps}
    return Outcome(described | {"kills": arguments.kills, "seed": arguments.seed}, figures)
