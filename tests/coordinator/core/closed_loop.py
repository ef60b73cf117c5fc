"""Simulate a whole run in virtual time around the real core, with the simplest learner, broadcasts and peers.

Completions have log-normal lengths; a slot has the same length at every peer. A peer generates ``concurrent`` at once
and begins the next one, oldest lease first, as soon as one is done. Nothing fails, and messages take no time.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from capacity.model.staleness import staleness_needed
from coordinator.core.core import CoordinatorCore
from coordinator.core.events.actions import (
    RecordBatch,
    RevokeLeases,
    ScoreRollout,
    SendLeases,
    ServeBatch,
    StoreRollout,
    SupplyPrompts,
)
from coordinator.core.events.events import (
    BatchRecorded,
    BatchRequested,
    Event,
    PromptsSupplied,
    RolloutScored,
    RolloutStored,
    Tick,
    WorkRequested,
)
from rollcast.wire.ids import Epoch, LeaseId, PeerId, Step, Version
from rollcast.wire.rollouts import LeaseGrant, Segment
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.core_world import SAMPLING, announced, held, joined, prompt, received, rollout, settings

TICK_S = 1.0
AFTERWARDS = 8  # steps that the run would still have: at its end it begins no group more than it needs
P90 = 1.2816  # of the normal distribution
TOKENS_A_SECOND = 1.0  # of a slot at speed 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Durations in seconds. ``surplus``: how many more workers than the learner needs; 0.5 is 50 %."""

    steps: int = 60
    groups_per_step: int = 16
    samples_per_group: int = 8
    train_s: float = 60.0
    t_bcast_s: float = 12.0
    generate_median_s: float = 15.0
    sigma: float = 0.6  # of the logarithm of lengths
    longest: float = 6.0  # completions are cut at so many medians
    surplus: float = 0.5
    speeds: tuple[float, ...] = (1.0,)  # of the peers, over and over
    concurrent: int = 4
    staleness_extra: int = 0  # above what is needed
    score_s: float = 0.2
    seed: int = 1
    core: dict[str, Any] = field(default_factory=dict)

    @property
    def staleness_limit(self) -> int:
        """The staleness limit that the capacity model computes, plus the extra."""
        needed = staleness_needed(
            t_bcast_s=self.t_bcast_s,
            t_gen_p90_s=self.generate_median_s * math.exp(P90 * self.sigma),
            t_train_s=self.train_s,
            publish_every_steps=1,
        )
        return needed + self.staleness_extra

    def length_s(self, seed: int) -> float:
        """Return the seconds that a slot takes at speed 1."""
        factor = math.exp(self.sigma * random.Random(seed).gauss(0.0, 1.0))
        return self.generate_median_s * min(factor, self.longest)

    @property
    def mean_length_s(self) -> float:
        """The mean of ``length_s`` over many slots."""
        return sum(self.length_s(number) for number in range(4000)) / 4000

    def peers(self) -> list[float]:
        """Return the speed of each peer: as many peers as the learner needs, and the surplus."""
        rollouts = self.groups_per_step * self.samples_per_group
        speed_needed = (1.0 + self.surplus) * rollouts * self.mean_length_s / (self.train_s * self.concurrent)
        speeds: list[float] = []
        while sum(speeds) < speed_needed:
            speeds.append(self.speeds[len(speeds) % len(self.speeds)])
        return speeds


@dataclass(slots=True)
class FakePeer:
    """One worker. ``running``: slots in progress, by the event at which they are done."""

    peer_id: PeerId
    speed: float
    concurrent: int
    version: int = 0
    waiting: deque[tuple[LeaseGrant, int]] = field(default_factory=deque)
    running: dict[tuple[LeaseId, int], tuple[LeaseGrant, int]] = field(default_factory=dict)  # and its version
    revoked: set[LeaseId] = field(default_factory=set)
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Shares from 0 to 1, after the first quarter of the steps, which is left out as the start."""

    dropped_share: float  # of the rollouts that ended
    utilisation: float  # of the learner's time
    mean_age: float
    max_age: int
    busy_share: float  # of the peers' slots
    duplicates: int
    dropped: dict[str, int]
    steps: int


class ClosedLoop:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        values: dict[str, Any] = {
            "steps": scenario.steps + AFTERWARDS,
            "staleness_limit": scenario.staleness_limit,
            "groups_per_step": scenario.groups_per_step,
            "samples_per_group": scenario.samples_per_group,
            "lease_deadline_s": 40.0 * scenario.generate_median_s * scenario.longest,
            "heartbeat_timeout_s": 1e9,
            "validate_every_event": False,
            "prompts_ahead_max": 10_000,
            "sampling": replace(SAMPLING, max_new_tokens=10_000),
        }
        self.core = CoordinatorCore(settings(**(values | scenario.core)))
        self.now = 0.0
        self.peers = {
            PeerId(f"p{number}"): FakePeer(PeerId(f"p{number}"), speed, scenario.concurrent)
            for number, speed in enumerate(scenario.peers())
        }
        self._queue: list[tuple[float, int, Any]] = []
        self._order = 0
        self._prompts = 0
        self._uploads = 0
        self._requested_at = 0.0
        self._waited_s = 0.0
        self._mark: tuple[float, float, int, int] | None = None

    # ------------------------------------------------------------ time

    def at(self, delay_s: float, what: Any) -> None:
        self._order += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._order, what))

    def handle(self, event: Event) -> None:
        for action in self.core.handle(event, self.now):
            match action:
                case SupplyPrompts(count):
                    numbers = range(self._prompts, self._prompts + count)
                    self._prompts += count
                    self.at(0.0, PromptsSupplied(tuple(prompt(number % 20) for number in numbers)))
                case SendLeases(peer_id, leases):
                    self.at(0.05, ("leases", self.peers[peer_id], leases))
                case RevokeLeases(peer_id, lease_ids):
                    self.peers[peer_id].revoked.update(lease_ids)
                case StoreRollout(rollout_id):
                    self.at(0.01, RolloutStored(rollout_id))
                case ScoreRollout(rollout_id):
                    self.at(self.scenario.score_s, RolloutScored(rollout_id, 1.0))
                case RecordBatch(step):
                    self.at(0.01, BatchRecorded(step))
                case ServeBatch(step, _):
                    self._serve(step)
                case _:
                    pass

    def run(self) -> Outcome:
        self.handle(joined("origin", role="origin"))
        for peer in self.peers.values():
            self.handle(joined(peer.peer_id, address="", concurrent=peer.concurrent))
        self.handle(announced(0))
        chance = random.Random(self.scenario.seed)
        for peer in self.peers.values():
            self.at(chance.random() * self.scenario.t_bcast_s, ("holds", peer, 0))
        self.at(0.0, ("tick",))
        self._request(0)
        while self.core.recorded_batches < self.scenario.steps:
            assert self.now < 100.0 * self.scenario.steps * self.scenario.train_s, "the run is stuck"
            self.now, _, what = heapq.heappop(self._queue)
            if isinstance(what, tuple):
                self._own(*what)
            else:
                self.handle(what)
        return self._outcome()

    def _own(self, kind: str, *rest: Any) -> None:
        match kind:
            case "tick":
                self.handle(Tick())
                self.at(TICK_S, ("tick",))
            case "holds":
                self._holds(*rest)
            case "leases":
                self._take(*rest)
            case "done":
                self._done(*rest)
            case _:
                self._published(*rest)

    # ------------------------------------------------------------ the learner

    def _request(self, step: int) -> None:
        self._requested_at = self.now
        self.handle(BatchRequested(Step(step)))

    def _serve(self, step: Step) -> None:
        self._waited_s += self.now - self._requested_at
        if step == self.scenario.steps // 4:
            rollouts = self.core.status(self.now).rollouts
            self._mark = (self.now, self._waited_s, rollouts.trained, sum(rollouts.dropped.values()))
            for peer in self.peers.values():
                peer.busy_s = 0.0
        self.at(self.scenario.train_s, ("published", int(step) + 1))

    def _published(self, version: int) -> None:
        self.handle(announced(version))
        chance = random.Random(self.scenario.seed + version)
        for peer in self.peers.values():
            self.at(self.scenario.t_bcast_s * (0.3 + 0.7 * chance.random()), ("holds", peer, version))
        if version < self.scenario.steps:
            self._request(version)

    # ------------------------------------------------------------ peers

    def _holds(self, peer: FakePeer, version: int) -> None:
        peer.version = max(peer.version, version)
        self.handle(held(peer.peer_id, version))
        self._ask(peer)

    def _ask(self, peer: FakePeer) -> None:
        wanted = int(self.core.settings.prefetch_batches * peer.concurrent)
        self.handle(WorkRequested(peer.peer_id, max(0, wanted - len(peer.waiting) - len(peer.running))))

    def _take(self, peer: FakePeer, leases: tuple[LeaseGrant, ...]) -> None:
        peer.waiting += [(lease, slot.sample_index) for lease in leases for slot in lease.slots]
        self._begin(peer)

    def _begin(self, peer: FakePeer) -> None:
        while peer.waiting and len(peer.running) < peer.concurrent:
            lease, index = peer.waiting.popleft()
            if lease.lease_id in peer.revoked:
                continue
            slot = next(one for one in lease.slots if one.sample_index == index)
            took_s = self.scenario.length_s(slot.seed) / peer.speed
            peer.running[(lease.lease_id, index)] = (lease, peer.version)
            self.at(took_s, ("done", peer, lease, index, took_s))

    def _done(self, peer: FakePeer, lease: LeaseGrant, index: int, took_s: float) -> None:
        _, version = peer.running.pop((lease.lease_id, index))
        peer.busy_s += took_s
        if lease.lease_id not in peer.revoked:
            self._uploads += 1
            tokens = (5,) * max(1, round(took_s * peer.speed * TOKENS_A_SECOND) - 1) + (1,)
            segment = Segment(
                "assistant", Epoch(0), Version(version), peer.peer_id, pack_ids(tokens), b"\x01" * len(tokens)
            )
            item = replace(rollout(lease, index), segments=(segment,), generate_s=took_s)
            self.handle(received(peer.peer_id, self._uploads, item))
        self._begin(peer)
        self._ask(peer)

    # ------------------------------------------------------------ figures

    def _outcome(self) -> Outcome:
        status = self.core.status(self.now)
        assert self._mark is not None
        started_at, waited_s, trained, dropped_before = self._mark
        dropped = sum(status.rollouts.dropped.values()) - dropped_before
        ended = status.rollouts.trained - trained + dropped
        seconds = self.now - started_at
        ages = {int(age): count for age, count in status.staleness_histogram.items()}
        return Outcome(
            dropped_share=dropped / ended,
            utilisation=1.0 - (self._waited_s - waited_s) / seconds,
            mean_age=sum(age * count for age, count in ages.items()) / sum(ages.values()),
            max_age=max(ages),
            busy_share=sum(peer.busy_s for peer in self.peers.values())
            / (seconds * self.scenario.concurrent * len(self.peers)),
            duplicates=self.core._state.accounts.second_attempts,
            dropped=status.rollouts.dropped,
            steps=self.core.recorded_batches,
        )
