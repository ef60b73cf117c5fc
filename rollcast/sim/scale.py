"""Study how a run behaves as its fleet grows: simulate fleets of several sizes and rates of churn on virtual time.

The cores are the real ones, and the coordinator's is timed while it runs: its processor time per virtual second is what
it would need of a core of this machine, without connections, encryption and the ledger, which the simulator does not
have. Versions arrive at the time of the fluid bound of all access links.
"""

from __future__ import annotations

import gc
import time
from dataclasses import asdict, dataclass
from typing import Any

from coordinator.core.core import CoordinatorCore
from coordinator.core.decisions.settings import CoreSettings
from coordinator.core.events.actions import Action
from coordinator.core.events.events import Event
from coordinator.core.events.restored import Restored
from rollcast.sim.fleet import Fleet
from rollcast.sim.nodes.coordinator import CoordinatorNode
from rollcast.sim.scenario import paced
from rollcast.sim.simulation import rare_collections

PREEMPTIONS_PER_HOUR = 0.1
"""Of each peer, at a churn of 1: a spot machine that is lost twice or three times a day."""
AWAY_S = 120.0
"""Seconds for which a preempted peer is away: until another machine has taken its place."""
_TOO_OLD = ("stale", "group_stale")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """What was simulated for one fleet, and found after its warm-up.

    Args:
        churn: preemptions of each peer, in multiples of PREEMPTIONS_PER_HOUR.
        utilisation: share of the time in which the learner trained.
        t_bcast_s, t_bcast_p95_s: seconds from a version's announcement to the last peer's copy.
        age_mean, age_max: learner steps between a trained rollout's version and its use.
        dropped_share: of the ended rollouts, those that were too old.
        core_share: the core's processor time per virtual second.
        core_ms_per_rollout: the core's processor time per accepted rollout, all its other events included.
        core_block_ms_max, core_block_event: the longest time that one event took in the core, and the event's name.
        peer_hours_per_kilo_rollout: hours of peers per 1,000 trained rollouts; times a price, their cost.
        realtime_factor: virtual seconds per CPU second of the simulation, the judge included.
    """

    peers: int
    churn: float
    seed: int
    minutes: float
    staleness_limit: int
    steps: int
    utilisation: float
    t_bcast_s: float
    t_bcast_p95_s: float
    age_mean: float
    age_max: int
    dropped_share: float
    rollouts_per_second: float
    core_share: float
    core_ms_per_rollout: float
    core_block_ms_max: float
    core_block_event: str
    peer_hours_per_kilo_rollout: float
    realtime_factor: float
    violations: int

    def to_json(self) -> dict[str, Any]:
        """Return the point as ``--json`` prints it."""
        return asdict(self)


class TimedCore(CoordinatorCore):
    """The coordinator's core, with the processor time that it takes.

    The garbage collector waits meanwhile: it would look through the whole simulated fleet, which no coordinator holds.
    """

    def __init__(self, settings: CoreSettings, restored: Restored | None = None) -> None:
        super().__init__(settings, restored)
        self.cpu_s = 0.0
        self.block_s_max, self.block_event = 0.0, ""

    def handle(self, event: Event, now: float) -> list[Action]:
        gc.disable()
        began_s = time.thread_time()
        actions = super().handle(event, now)
        took_s = time.thread_time() - began_s
        gc.enable()
        self.cpu_s += took_s
        if took_s > self.block_s_max:
            self.block_s_max, self.block_event = took_s, type(event).__name__
        return actions


class TimedCoordinator(CoordinatorNode):
    """The coordinator's process with a timed core."""

    core_type = TimedCore

    @property
    def timed(self) -> TimedCore:
        """Return the core; the process must run."""
        assert isinstance(self.core, TimedCore)
        return self.core


def simulate_scale(peers: int, churn: float, *, minutes: float, warm_up_minutes: float, seed: int) -> ScalePoint:
    """Simulate a fleet a quarter larger than its learner needs, and return what was found after the warm-up.

    Raises:
        ValueError: there is no peer, no time, or less than no churn.
    """
    if peers < 1 or min(minutes, warm_up_minutes) <= 0.0 or churn < 0.0:
        raise ValueError("a study needs at least one peer, some minutes after some minutes of warm-up, and churn >= 0")
    with rare_collections():
        return _simulate(peers, churn, minutes, warm_up_minutes, seed)


def _simulate(peers: int, churn: float, minutes: float, warm_up_minutes: float, seed: int) -> ScalePoint:
    settings = paced(peers)
    fleet = Fleet(settings, seed, TimedCoordinator)
    coordinator = fleet.coordinator
    assert isinstance(coordinator, TimedCoordinator)
    if churn:
        for peer in fleet.peers:
            fleet.preempt(peer, churn * PREEMPTIONS_PER_HOUR / 3600.0, AWAY_S)
    fleet.run(warm_up_minutes * 60.0)
    before = _Count.of(fleet, coordinator)
    coordinator.timed.block_s_max, coordinator.timed.block_event = 0.0, ""
    fleet.run(minutes * 60.0)
    found = _Count.of(fleet, coordinator).since(before)
    seconds, ended = minutes * 60.0, found.trained + found.too_old
    bcast = coordinator.timed._state.dissemination.seconds
    return ScalePoint(
        peers=peers,
        churn=churn,
        seed=seed,
        minutes=minutes,
        staleness_limit=settings.staleness_limit,
        steps=found.steps,
        utilisation=found.steps * settings.train_s / found.progress_s if found.steps else 0.0,
        t_bcast_s=bcast.percentile(50) or 0.0,
        t_bcast_p95_s=bcast.percentile(95) or 0.0,
        age_mean=sum(age * count for age, count in found.ages.items()) / max(1, sum(found.ages.values())),
        age_max=max(found.ages, default=0),
        dropped_share=found.too_old / ended if ended else 0.0,
        rollouts_per_second=found.accepted / seconds,
        core_share=found.core_s / seconds,
        core_ms_per_rollout=1e3 * found.core_s / found.accepted if found.accepted else 0.0,
        core_block_ms_max=1e3 * coordinator.timed.block_s_max,
        core_block_event=coordinator.timed.block_event,
        peer_hours_per_kilo_rollout=peers * seconds / 3600.0 / found.trained * 1e3 if found.trained else 0.0,
        realtime_factor=seconds / found.cpu_s,
        violations=len(fleet.ground.oracle.violations),
    )


@dataclass(frozen=True, slots=True)
class _Count:
    """What has happened until a moment, or between two."""

    steps: int
    progress_s: float  # when the last step ended, or between two such moments
    accepted: int
    trained: int
    too_old: int
    ages: dict[int, int]
    core_s: float
    cpu_s: float

    @classmethod
    def of(cls, fleet: Fleet, coordinator: TimedCoordinator) -> _Count:
        counts, oracle = coordinator.tables.counts(), fleet.ground.oracle
        too_old = sum(counts.dropped.get(one, 0) for one in _TOO_OLD)
        ages, core_s = dict(oracle.ages), coordinator.timed.cpu_s
        return cls(
            oracle.steps,
            oracle.last_progress_s,
            counts.accepted,
            counts.trained,
            too_old,
            ages,
            core_s,
            time.process_time(),
        )

    def since(self, before: _Count) -> _Count:
        ages = {age: count - before.ages.get(age, 0) for age, count in self.ages.items()}
        return _Count(
            self.steps - before.steps,
            self.progress_s - before.progress_s,
            self.accepted - before.accepted,
            self.trained - before.trained,
            self.too_old - before.too_old,
            {age: count for age, count in ages.items() if count},
            self.core_s - before.core_s,
            self.cpu_s - before.cpu_s,
        )
