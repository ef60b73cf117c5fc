"""Run one simulation from its seed to its outcome: a fleet, a period of faults, a calm period, the end of the run."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from coordinator.core.events.events import RunEnded
from rollcast.sim import compiled
from rollcast.sim.faults import Faults
from rollcast.sim.fleet import Fleet, Progress
from rollcast.sim.judge.verdicts import Violation
from rollcast.sim.scenario import GAP_S, SECONDS, standard
from rollcast.sim.settings import FleetSettings

_BUGS = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
DRAIN_S = 12.0  # seconds for peers to drain after the run ends
# Fleets live until their simulation ends, and events leave few cycles: 1,000 peers with 16 times the usual churn leave
# 4,500 of 630,000 objects in 15 minutes. With the default thresholds the collector scans the whole fleet again and
# again: a third of the CPU time at 1,000 peers; with a first threshold of a million, a fifth of it at 100,000.
_GC_THRESHOLDS = (50_000_000, 10, 10)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one simulation. Durations are virtual seconds unless their name says otherwise."""

    seed: int
    seconds: float
    steps: int
    utilisation: float  # share of virtual time in which the learner trained on new batches
    issued: int
    accepted: int
    trained: int
    dropped: dict[str, int]
    ages: dict[int, int]
    faults: dict[str, int]
    checks: int
    agenda_calls: int
    core_events: int
    cpu_s: float
    digest: str
    evaluations_done: int
    evaluations_given_up: int
    t_bcast_s: float  # from a version's announcement to the last peer's copy: the median; below the 95th percentile
    t_bcast_p95_s: float
    violations: tuple[Violation, ...]
    compiled: bool  # by rollcast/sim/compiled.py

    @property
    def realtime_factor(self) -> float:
        """Return the virtual seconds simulated per CPU second."""
        return self.seconds / self.cpu_s

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as ``--json`` prints it.

        Figures that depend on the machine are under ``machine``, so that the rest can be compared between machines.
        """
        values = asdict(replace(self, violations=()))
        values["violations"] = [asdict(one) for one in self.violations]
        values["machine"] = {
            "cpu_s": values.pop("cpu_s"),
            "realtime_factor": self.realtime_factor,
            "events_per_cpu_s": self.core_events / self.cpu_s,
            "compiled": values.pop("compiled"),
        }
        return values


def simulate(
    settings: FleetSettings,
    seed: int,
    *,
    seconds: float,
    faults: Sequence[str] | None = None,
    gap_s: float = GAP_S,
    warm_up_s: float = 10.0,
    progress: Progress | None = None,
    until_violation: bool = False,
) -> Outcome:
    """Simulate one fleet for ``seconds`` of virtual time, then end its run and check that the accounts close.

    Args:
        faults: the kinds of faults to inject; empty injects all kinds, None injects no fault.
        gap_s: mean time between two faults, in virtual seconds.
        warm_up_s: virtual seconds before the first fault.
        progress: gets the share of ``seconds`` that is done.
        until_violation: end the simulation at its first violation.
    """
    with rare_collections():
        return _simulate(settings, seed, seconds, faults, gap_s, warm_up_s, progress, until_violation)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the cyclic garbage collector run seldom while the body runs."""
    before = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _simulate(
    settings: FleetSettings,
    seed: int,
    seconds: float,
    faults: Sequence[str] | None,
    gap_s: float,
    warm_up_s: float,
    progress: Progress | None,
    until_violation: bool,
) -> Outcome:
    started_s = time.process_time()
    fleet = Fleet(settings, seed)
    agenda, oracle = fleet.ground.agenda, fleet.ground.oracle
    done = (lambda: fleet.is_blamed) if until_violation else None
    happened: list[str] = []
    try:
        if faults is None:
            fleet.run(seconds, progress, done)
        else:
            happened = _with_faults(fleet, faults, seconds, gap_s, warm_up_s, progress, done)
        ran_s = agenda.now
        _end(fleet)
    except _BUGS as error:  # a core raised an error that it must never raise: a finding, which must not end the search
        ran_s = agenda.now
        oracle.failed(f"{type(error).__name__}: {error}, {_where(error)}", ran_s)
    counts, core = fleet.coordinator.tables.counts(), fleet.coordinator.core
    bcast = None if core is None else core._state.dissemination.seconds
    return Outcome(
        seed=seed,
        seconds=ran_s,
        steps=oracle.steps,
        utilisation=oracle.steps * settings.train_s / ran_s if ran_s else 0.0,
        issued=counts.issued,
        accepted=counts.accepted,
        trained=counts.trained,
        dropped=dict(sorted(counts.dropped.items())),
        ages=dict(sorted(oracle.ages.items())),
        faults={name: happened.count(name) for name in sorted(set(happened))},
        checks=sum(judge.checks for judge in fleet.judges),
        agenda_calls=agenda.done,
        core_events=sum(one.events for one in fleet.coordinators),
        cpu_s=time.process_time() - started_s,
        digest=fleet.ground.trace.digest(),
        evaluations_done=oracle.evaluation.done,
        evaluations_given_up=oracle.evaluation.given_up,
        t_bcast_s=bcast.percentile(50) or 0.0 if bcast else 0.0,
        t_bcast_p95_s=bcast.percentile(95) or 0.0 if bcast else 0.0,
        violations=tuple(fleet.violations),
        compiled=compiled.in_use(),
    )


def simulate_standard(
    seed: int, faults: Sequence[str] = (), *, own_checks: bool = True, until_violation: bool = False, **changes: Any
) -> Outcome:
    """Simulate the standard fault mix with this seed.

    Args:
        own_checks: whether the coordinator's core also runs its own ``validate()``; the mutation gate switches that
            off, so that only the independent judge can find a planted bug.
        until_violation: end the simulation at its first violation.
        changes: settings of the fleet that differ from the mix's.
    """
    settings = replace(standard(seed), own_checks=own_checks, **changes)
    return simulate(settings, seed, seconds=SECONDS, faults=faults, until_violation=until_violation)


def _with_faults(
    fleet: Fleet,
    names: Sequence[str],
    seconds: float,
    gap_s: float,
    warm_up_s: float,
    progress: Progress | None,
    done: Callable[[], bool] | None,
) -> list[str]:
    """Inject faults for ``seconds``, then wait for the next step, no longer than invariant I10 allows.

    Returns:
        The kinds of the faults that happened, in order.
    """
    agenda, oracle = fleet.ground.agenda, fleet.ground.oracle
    injected = Faults(fleet, names)
    injected.schedule(warm_up_s, seconds, gap_s)
    fleet.run(seconds + 1e-6, progress, done)
    if fleet.is_blamed and done is not None:
        return injected.happened

    def judged() -> bool:
        late = agenda.now > oracle.resume_by_s(seconds)
        return late or oracle.last_progress_s > seconds or fleet.is_blamed

    agenda.run(seconds + fleet.settings.calm_limit_s + 1.0, judged)
    oracle.calm(seconds, agenda.now)
    return injected.happened


def _where(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"in {frame.name} of {frame.filename.rsplit('/', 2)[-1]}"


def _end(fleet: Fleet) -> None:
    """End the run, let every peer drain, and check I10 and I11: all peers stop and no attempt stays open."""
    oracle = fleet.ground.oracle
    if fleet.is_blamed:
        return
    fleet.ground.agenda.run(fleet.ground.agenda.now + DRAIN_S, lambda: fleet.coordinator.core is not None)
    coordinator = fleet.coordinator
    fleet.over = True
    fleet.learner.kill()
    coordinator.apply(RunEnded("finished", True))
    fleet.run(DRAIN_S)
    now = fleet.ground.agenda.now
    if coordinator.core is None:
        oracle.failed("the coordinator does not run at the end of the run", now)
        return
    oracle.coordinator_counts(coordinator.core, now)
    oracle.evaluation.over(coordinator.core, now)
    counts = coordinator.tables.counts()
    if counts.open:
        oracle.blame("I11", f"{counts.open} attempts are open after the end of the run", now)
    for cell in fleet.cells:
        still_open = cell.coordinator.tables.counts().open
        if still_open:
            cell.ground.oracle.blame("I11", f"{still_open} attempts are open in {cell.uplink.name} after the run", now)
    peers = [*fleet.peers, *(peer for cell in fleet.cells for peer in cell.peers)]
    running = [peer.name for peer in peers if peer.running]
    if running:
        oracle.blame("I10", f"{running} did not stop with the run", now, running[0])
