"""Split the age of trained rollouts into the seconds that each stage took.

    frozen ─train─► announced ─broadcast─► held ─queue─► begun ─generate─► received ─return─► scored ─queue─► batch

for the oldest version that a rollout was made with: from the moment when the learner had completed that many steps to
the moment when the rollout's batch is formed. The parts of a rollout sum up to its age. They are measured from the
core's own events and actions; the one figure that comes from a peer, how long it generated, is bounded by the time
between issue and receipt. Rollouts whose stages began before a restart are counted as unknown.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from coordinator.core.events.actions import (
    Action,
    CloseAttempt,
    RecordAttempt,
    RecordBatch,
    StoreEpisode,
    StoreRollout,
    each,
)
from coordinator.core.events.events import (
    BatchRequested,
    Event,
    HeartbeatReceived,
    RolloutReceived,
    RolloutScored,
    StepFinished,
    VersionAnnounced,
    VersionHeld,
)
from coordinator.core.events.restored import RestoredGroup
from rollcast.runtime.windows import Distribution
from rollcast.wire.ids import LeaseId, PeerId, RolloutId, Step, Version
from rollcast.wire.rollouts import Rollout

PARTS = ("train", "broadcast", "queue", "generate", "return")
SECONDS_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 300.0, 900.0, 3600.0)
STEPS_KEPT = 256  # steps whose sums are remembered one by one
_VERSIONS_KEPT = 64  # beyond any sensible S: rollouts of older ones are counted as unknown
_HOLDERS_KEPT = 16384  # peers remembered for one version

_Key = tuple[LeaseId, int]
_WATCHED = frozenset({RecordAttempt, StoreRollout, StoreEpisode, CloseAttempt, RecordBatch})


@dataclass(frozen=True, slots=True)
class Split:
    """Sums over trained rollouts: seconds by stage, ages in learner steps; ``unknown`` counts those without a split."""

    seconds: tuple[float, ...] = (0.0,) * len(PARTS)
    rollouts: int = 0
    unknown: int = 0
    age_steps: int = 0  # sum over all rollouts, unknown ones included

    def __add__(self, other: Split) -> Split:
        return Split(
            tuple(a + b for a, b in zip(self.seconds, other.seconds, strict=True)),
            self.rollouts + other.rollouts,
            self.unknown + other.unknown,
            self.age_steps + other.age_steps,
        )

    def means(self) -> dict[str, Any]:
        """Return the mean age in steps, and the mean seconds of each part; None without a rollout."""
        trained = self.rollouts + self.unknown
        return {
            "rollouts": self.rollouts,
            "unknown": self.unknown,
            "age_steps": self.age_steps / trained if trained else None,
            "age_s": sum(self.seconds) / self.rollouts if self.rollouts else None,
            **{
                f"{part}_s": seconds / self.rollouts if self.rollouts else None
                for part, seconds in zip(PARTS, self.seconds, strict=True)
            },
        }

    def to_json(self) -> dict[str, float]:
        """Return the sums as a flat mapping, which is kept across restarts."""
        kept = dict(zip(PARTS, self.seconds, strict=True))
        return {**kept, "rollouts": self.rollouts, "unknown": self.unknown, "age_steps": self.age_steps}

    @classmethod
    def from_json(cls, kept: Mapping[str, float]) -> Split:
        """Return the split that ``to_json`` returned; an empty one where nothing was kept."""
        seconds = tuple(float(kept.get(part, 0.0)) for part in PARTS)
        return cls(seconds, *(int(kept.get(name, 0)) for name in ("rollouts", "unknown", "age_steps")))


@dataclass(slots=True)
class _VersionTimes:
    """The times at which a version was frozen and announced, and since which each peer holds it."""

    frozen_at: float
    announced_at: float
    held_at: dict[PeerId, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Made:
    """The times of a stored rollout. ``oldest_peer`` generated its oldest segment."""

    oldest: Version
    oldest_peer: PeerId
    begun_at: float | None
    received_at: float
    scored_at: float | None = None


class AgeBreakdown:
    """Measures the ages of trained rollouts, from events and actions. Times are the core's clock in seconds."""

    def __init__(self, before: Mapping[str, float], groups: Iterable[RestoredGroup]) -> None:
        """Start from ``before``, sums kept from before a restart, and ``groups``, the groups that were open then."""
        self.total = Split.from_json(before)
        self.last: Split | None = None  # split of the newest batch; None before the first
        self.parts = {part: Distribution(SECONDS_BOUNDS) for part in PARTS}
        self.steps: deque[tuple[Step, Split]] = deque(maxlen=STEPS_KEPT)
        self._reached: OrderedDict[int, float] = OrderedDict()  # when the learner had completed so many steps
        self._versions: OrderedDict[Version, _VersionTimes] = OrderedDict()
        self._issued: dict[_Key, float] = {}
        self._made: dict[RolloutId, _Made] = {}
        self._by_key: dict[_Key, RolloutId] = {}
        for group in groups:
            for rollout in group.rollouts:
                made = _Made(rollout.oldest_version, rollout.attempt.peer_id, None, 0.0)
                self._keep((rollout.attempt.lease_id, rollout.attempt.sample_index), rollout.rollout_id, made)

    def newest_steps(self, count: int) -> list[tuple[Step, Split]]:
        """Return the sums of the newest steps, oldest first."""
        return list(self.steps)[-count:]

    def publish_s(self) -> float | None:
        """Return the median seconds from a learner step's end to the announcement of its version; None before one."""
        known = [one.announced_at - one.frozen_at for version, one in self._versions.items() if version > 0]
        return median(known) if known else None

    def observe(self, event: Event, actions: Sequence[Action], now: float) -> None:
        """Measure an event and the actions that it led to; called with every event."""
        match event:  # the most frequent ones first
            case HeartbeatReceived():
                if event.facts.active_version is not None:
                    self._held(event.peer_id, event.facts.active_version, now)
            case RolloutScored():
                made = self._made.get(event.rollout_id)
                if made is not None:
                    made.scored_at = now
            case VersionHeld():
                self._held(event.peer_id, event.version, now)
            case StepFinished() | BatchRequested():  # batch n is requested when n steps are completed
                self._learner_reached(event.step, now)
            case VersionAnnounced():
                self._announced(event.version, now)
            case _:
                pass
        if actions:
            self._observe_actions(event, actions, now)

    def _observe_actions(self, event: Event, actions: Sequence[Action], now: float) -> None:
        for action in each(actions):
            if type(action) not in _WATCHED:
                continue
            match action:
                case RecordAttempt():
                    self._issued[(action.lease_id, action.sample_index)] = now
                case StoreRollout() if isinstance(event, RolloutReceived):
                    self._received(action.rollout_id, action.rollout, now)
                case StoreEpisode():
                    self._received(action.rollout_id, action.rollout, now)
                    self._made[action.rollout_id].scored_at = now  # by its environment
                case CloseAttempt():
                    self._discard((action.lease_id, action.sample_index))
                case RecordBatch():
                    self._batch(action, now)
                case _:
                    pass

    # ---------------------------------------------------------------- what happened

    def _learner_reached(self, steps: int, now: float) -> None:
        self._reached.setdefault(steps, now)
        while len(self._reached) > _VERSIONS_KEPT:
            self._reached.popitem(last=False)

    def _announced(self, version: Version, now: float) -> None:
        self._versions.setdefault(version, _VersionTimes(self._reached.get(version, now), now))
        while len(self._versions) > _VERSIONS_KEPT:
            self._versions.popitem(last=False)

    def _held(self, peer_id: PeerId, version: Version, now: float) -> None:
        times = self._versions.get(version)
        if times is not None and peer_id not in times.held_at and len(times.held_at) < _HOLDERS_KEPT:
            times.held_at[peer_id] = now

    def _received(self, rollout_id: RolloutId, rollout: Rollout, now: float) -> None:
        key = (rollout.lease_id, rollout.sample_index)
        issued_at = self._issued.pop(key, None)
        begun_at = None if issued_at is None else max(issued_at, now - max(0.0, rollout.generate_s))
        generated = (segment for segment in rollout.segments if segment.is_generated)
        oldest = min(generated, key=lambda segment: segment.version)
        self._keep(key, rollout_id, _Made(oldest.version, oldest.peer_id, begun_at, now))

    def _keep(self, key: _Key, rollout_id: RolloutId, made: _Made) -> None:
        self._made[rollout_id] = made
        self._by_key[key] = rollout_id

    def _discard(self, key: _Key) -> None:
        self._issued.pop(key, None)
        rollout_id = self._by_key.pop(key, None)
        if rollout_id is not None:
            del self._made[rollout_id]

    # ---------------------------------------------------------------- what it adds up to

    def _batch(self, action: RecordBatch, now: float) -> None:
        seconds, rollouts, age_steps = [0.0] * len(PARTS), 0, 0
        for rollout_id in action.rollout_ids:
            made = self._made.pop(rollout_id, None)
            if made is None:
                continue
            age_steps += action.step - made.oldest
            parts = self._seconds(made, now)
            if parts is not None:
                rollouts += 1
                for index, value in enumerate(parts):
                    seconds[index] += value
                    self.parts[PARTS[index]].add(value)
        split = Split(tuple(seconds), rollouts, len(action.rollout_ids) - rollouts, age_steps)
        self._by_key = {key: rollout_id for key, rollout_id in self._by_key.items() if rollout_id in self._made}
        self.last = split
        self.total += split
        self.steps.append((action.step, split))

    def _seconds(self, made: _Made, now: float) -> tuple[float, ...] | None:
        """Return the seconds of each part of the age of a rollout whose batch is formed now; None if unknown."""
        times = self._versions.get(made.oldest)
        held_at = None if times is None else times.held_at.get(made.oldest_peer)
        if times is None or held_at is None or made.begun_at is None or made.scored_at is None:
            return None
        # Each time is at least the one before: a peer may report late that it holds a version.
        announced_at = max(times.announced_at, times.frozen_at)
        held_at = max(held_at, announced_at)
        received_at = max(made.received_at, held_at)
        begun_at = min(max(made.begun_at, held_at), received_at)
        scored_at = max(made.scored_at, received_at)
        return (
            announced_at - times.frozen_at,
            held_at - announced_at,
            (begun_at - held_at) + (now - scored_at),
            received_at - begun_at,
            scored_at - received_at,
        )

    def validate(self) -> None:
        """Raise AssertionError when the indices disagree."""
        assert set(self._by_key.values()) == self._made.keys(), "age breakdown: stored rollouts"
        assert not self._issued.keys() & self._by_key.keys(), "age breakdown: issued and received at once"
