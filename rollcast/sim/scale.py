"""Study how a run behaves as its fleet grows: simulate fleets of several sizes and rates of churn on virtual time.

As a program this module simulates one point; see ``command``, which starts it.

The cores are the real ones, and the coordinator's is timed while it runs: its processor time per virtual second is what
it would need of a core of this machine, without connections, encryption and the ledger, which the simulator does not
have. Versions arrive at the time of the fluid bound of all access links. Peers are preempted one by one at a rate, and
by the record of a spot market if one is given.
"""

from __future__ import annotations

import csv
import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any

from coordinator.core.core import CoordinatorCore
from coordinator.core.decisions.settings import CoreSettings
from coordinator.core.events.actions import Action
from coordinator.core.events.events import Event
from coordinator.core.events.restored import Restored
from rollcast.runtime.errors import ConfigError
from rollcast.sim import compiled
from rollcast.sim.fleet import Fleet, Progress
from rollcast.sim.nodes.coordinator import CoordinatorNode
from rollcast.sim.nodes.peer import PeerNode
from rollcast.sim.parallel import report_progress
from rollcast.sim.scenario import paced
from rollcast.sim.simulation import rare_collections

PREEMPTIONS_PER_HOUR = 0.1
"""Of each peer, at a churn of 1: a spot machine that is lost twice or three times a day."""
AWAY_S = 120.0
"""Seconds for which a preempted peer is away: until another machine has taken its place."""
ZONES = 8
"""Parts of a fleet that follow the record of a spot market, each from another moment of it on."""
_TOO_OLD = ("stale", "group_stale")
_NOT_BACK_S = 1e9  # a machine that the record takes away stays away until the record gives it back

Record = Sequence[tuple[float, int]]  # seconds since the start, and the machines alive from then on


@dataclass(frozen=True, slots=True)
class Spot:
    """The record of a spot market, by its name."""

    name: str
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """What was simulated for one fleet, and found after its warm-up.

    Args:
        churn: preemptions of each peer, in multiples of PREEMPTIONS_PER_HOUR.
        trace: the name of the spot market's record that the fleet follows; empty for none.
        utilisation: share of the time in which the learner trained.
        t_bcast_s, t_bcast_p95_s: seconds from a version's announcement to the last peer's copy.
        age_mean, age_max: learner steps between a trained rollout's version and its use.
        dropped_share: of the ended rollouts, those that were too old.
        peers_mean: peers that ran, on average.
        core_share: the core's processor time per virtual second.
        core_ms_per_rollout: the core's processor time per accepted rollout, all its other events included.
        core_block_ms_max, core_block_event: the longest time that one event took in the core, and the event's name.
            Relay plans of many members are solved beside it, as by the coordinator.
        origin_copies: copies of each version that the origin sends at least, at the end; the peers send the others.
        peer_hours_per_kilo_rollout: hours that peers ran per 1,000 accepted rollouts.
        usd_per_kilo_rollout: their price.
        realtime_factor: virtual seconds per CPU second of the simulation, the judge included.
        compiled: whether the cores were compiled: then the core's times are not those of a coordinator.
    """

    peers: int
    churn: float
    trace: str
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
    peers_mean: float
    rollouts_per_second: float
    core_share: float
    core_ms_per_rollout: float
    core_block_ms_max: float
    core_block_event: str
    origin_copies: float
    peer_hours_per_kilo_rollout: float
    usd_per_kilo_rollout: float
    realtime_factor: float
    violations: int
    compiled: bool = False

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


def read_spot(path: Path) -> Spot:
    """Read the record of a spot market: rows of milliseconds since its start, and the instances alive from then on.

    Raises:
        ConfigError: it is no such file.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            alive = {float(at_ms) / 1000.0: int(instances) for at_ms, instances in csv.reader(file)}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the record {path}",
            cause=str(error),
            fix="give a CSV file with rows of milliseconds and instances, as in bench/capacity/data/bamboo",
        ) from None
    if len(alive) < 2 or min(alive) < 0.0 or min(alive.values()) < 0 or max(alive.values()) < 1:
        raise ConfigError(f"the record {path} has no machines over time", fix="give one with two rows or more")
    return Spot(path.stem, sorted(alive.items()))


def simulate_scale(
    peers: int,
    churn: float,
    *,
    minutes: float,
    warm_up_minutes: float,
    seed: int,
    spot: Spot | None = None,
    usd_per_peer_hour: float = 0.0,
    progress: Progress | None = None,
) -> ScalePoint:
    """Simulate a fleet a quarter larger than its learner needs, and return what was found after the warm-up.

    Args:
        spot: the record of a spot market that the fleet follows; None for none.
        progress: called with the share that is simulated, as that grows.

    Raises:
        ValueError: there is no peer, no time, or less than no churn.
    """
    if peers < 1 or min(minutes, warm_up_minutes) <= 0.0 or churn < 0.0:
        raise ValueError("a study needs at least one peer, some minutes after some minutes of warm-up, and churn >= 0")
    with rare_collections():
        return _simulate(peers, churn, minutes, warm_up_minutes, seed, spot, usd_per_peer_hour, progress)


class _Market:
    """A spot market that takes peers of its zones away and gives them back, as a record of another one says.

    Each zone has the share of its peers that the record had of its most machines, from a moment of its own on, over
    and over. How the record's machines were started is left out.
    """

    def __init__(self, fleet: Fleet, record: Record) -> None:
        self._fleet = fleet
        self._random = fleet.ground.chance.of("spot market")
        self._most = max(alive for _, alive in record)
        record = list(dropwhile(lambda row: 2 * row[1] < self._most, record))
        for zone in range(min(ZONES, len(fleet.peers))):
            first = len(record) * zone // ZONES
            self._follow(fleet.peers[zone::ZONES], [*record[first:], *record[:first]], record)

    def _follow(self, peers: Sequence[PeerNode], ahead: Record, record: Record) -> None:
        """Have a zone follow what is ahead of it in the record, then all of it again."""
        agenda, at_s, before_s = self._fleet.ground.agenda, 0.0, ahead[0][0]
        for time_s, alive in ahead:
            at_s += max(0.0, time_s - before_s)
            before_s = time_s
            agenda.after(at_s, self._set, peers, round(len(peers) * alive / self._most))
        agenda.after(at_s + 1.0, self._follow, peers, record, record)

    def _set(self, peers: Sequence[PeerNode], count: int) -> None:
        running = [peer for peer in peers if peer.running]
        for peer in self._random.sample(running, max(0, len(running) - count)):
            self._fleet.down(peer, _NOT_BACK_S)
        missing = [peer for peer in peers if not peer.running]
        for peer in missing[: max(0, count - len(running))]:
            peer.start()


def _simulate(
    peers: int,
    churn: float,
    minutes: float,
    warm_up_minutes: float,
    seed: int,
    spot: Spot | None,
    usd_per_peer_hour: float,
    progress: Progress | None,
) -> ScalePoint:
    settings = paced(peers)
    fleet = Fleet(settings, seed, TimedCoordinator)
    coordinator = fleet.coordinator
    assert isinstance(coordinator, TimedCoordinator)
    if churn:
        for peer in fleet.peers:
            fleet.preempt(peer, churn * PREEMPTIONS_PER_HOUR / 3600.0, AWAY_S)
    if spot is not None:
        _Market(fleet, spot.record)
    warm_up_share = warm_up_minutes / (warm_up_minutes + minutes)
    fleet.run(warm_up_minutes * 60.0, progress and (lambda share: progress(share * warm_up_share)))
    before = _Count.of(fleet, coordinator)
    coordinator.timed.block_s_max, coordinator.timed.block_event = 0.0, ""
    fleet.run(minutes * 60.0, progress and (lambda share: progress(warm_up_share + share * (1.0 - warm_up_share))))
    found = _Count.of(fleet, coordinator).since(before)
    seconds, ended = minutes * 60.0, found.trained + found.too_old
    peer_hours = found.peer_s / 3600.0 / found.accepted * 1e3 if found.accepted else 0.0
    bcast = coordinator.timed._state.dissemination.seconds
    return ScalePoint(
        peers=peers,
        churn=churn,
        trace="" if spot is None else spot.name,
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
        peers_mean=found.peer_s / seconds,
        rollouts_per_second=found.accepted / seconds,
        core_share=found.core_s / seconds,
        core_ms_per_rollout=1e3 * found.core_s / found.accepted if found.accepted else 0.0,
        core_block_ms_max=1e3 * coordinator.timed.block_s_max,
        core_block_event=coordinator.timed.block_event,
        origin_copies=fleet.fluid.origin_copies,
        peer_hours_per_kilo_rollout=peer_hours,
        usd_per_kilo_rollout=peer_hours * usd_per_peer_hour,
        realtime_factor=seconds / found.cpu_s,
        violations=len(fleet.ground.oracle.violations),
        compiled=compiled.in_use(),
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
    peer_s: float

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
            fleet.fluid.peer_s,
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
            self.peer_s - before.peer_s,
        )


def command(
    peers: int,
    churn: float,
    *,
    minutes: float,
    warm_up_minutes: float,
    seed: int,
    spot: Path | None,
    usd: float,
    with_compiled: bool = False,
) -> list[str]:
    """Return the arguments of the interpreter that simulates one point in a process of its own and prints it."""
    options = {
        "peers": peers,
        "churn": churn,
        "minutes": minutes,
        "warm_up_minutes": warm_up_minutes,
        "seed": seed,
        "usd_per_peer_hour": usd,
    }
    module = ["rollcast.sim.compiled", "run", __name__] if with_compiled else [__name__]
    return ["-P", "-m", *module, json.dumps(options), *([] if spot is None else [str(spot)])]


def main(options: str, spot: str = "") -> None:
    """Simulate one point and print it as JSON."""
    record = read_spot(Path(spot)) if spot else None
    point = simulate_scale(**json.loads(options), spot=record, progress=report_progress)
    json.dump(point.to_json(), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
