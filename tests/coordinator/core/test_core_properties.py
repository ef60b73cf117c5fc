"""Random runs: peers that come, die, repeat, lie and dawdle. Every invariant is checked after every event, twice: by
the core itself, and by a judge that sees only events and actions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from coordinator.core.broadcast.nodes import PlanShape
from coordinator.core.core import CoordinatorCore
from coordinator.core.events.actions import (
    Action,
    RecordBatch,
    RecordEpoch,
    ScoreRollout,
    SendLeases,
    StoreRollout,
    SupplyPrompts,
)
from coordinator.core.events.events import (
    ArrivalsBegan,
    ArrivalsEnded,
    BatchRecorded,
    BatchRequested,
    EpochRecorded,
    EpochRequested,
    Event,
    LearnerCalled,
    LeasesReturned,
    PeerAccused,
    PeerLeft,
    PromptsSupplied,
    RolloutScored,
    RolloutStored,
    RunEnded,
    ScoringFailed,
    Tick,
    VersionAnnounced,
    VersionHeld,
)
from coordinator.core.events.profile_events import ProfileOrder, ProfileReport, ProfileReported, ProfileRequested
from coordinator.core.events.reach_events import DialBackEnded, PunchEnded, PunchRequested, ReachabilityTold
from coordinator.core.reach.dial_settings import DialBackSettings
from coordinator.core.reach.holes import NAT_KINDS
from coordinator.core.staleness.policy import LatePolicy
from rollcast.wire.ids import Epoch, FencingToken, LeaseId, PeerId, RolloutId, Step, Version
from rollcast.wire.rollouts import LeaseGrant, Rollout, Segment
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.core.history import History
from tests.coordinator.core_world import announced, heartbeat, joined, prompt, received, rollout, settings, wants

PEERS = ("a", "b", "c", "d")


class RandomFleet:
    """A core, the machinery that answers it late and out of order, and peers of all kinds."""

    def __init__(
        self,
        seed: int,
        *,
        staleness_limit: int = 2,
        finished_attempts_kept: int = 1000,
        late_policy: LatePolicy = "drop",
        epochs: bool = True,
        reach: bool = False,
        profiles: bool = False,
        arrivals: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.failures = random.Random(seed)  # of scoring
        self.now = 0.0
        self.uploads = self.prompts_made = self.events = self.punches = 0
        self.to_store: list[RolloutId] = []
        self.to_score: list[RolloutId] = []
        self.to_record: list[Step] = []
        self.to_supply: list[int] = []
        self.to_open: list[Epoch] = []
        self.profiled = ""  # id of the profile that the learner reports on
        self.epochs = epochs
        self.reach = reach
        self.profiles = profiles
        self.arrivals = arrivals
        self.grants: list[tuple[str, LeaseGrant]] = []
        self.sent: list[tuple[str, Rollout]] = []
        self.core = CoordinatorCore(
            settings(
                steps=1000,
                groups_per_step=2,
                samples_per_group=2,
                staleness_limit=staleness_limit,
                late_policy=late_policy,
                late_wait_s=1.0,
                lease_deadline_s=10.0,
                finished_attempts_kept=finished_attempts_kept,
                scoring_queue_max=6,
                plan_shape=PlanShape(mesh_peers_max=2, stripes=2),
                dial_backs=DialBackSettings(),
            )
        )
        age_max = staleness_limit + (late_policy == "correct")
        self.history = History(age_max=age_max, groups_per_step=2, samples_per_group=2)
        self.handle(joined("origin", role="origin"))
        self.handle(announced(0))

    def handle(self, event: Event) -> None:
        actions = self.core.handle(event, self.now)
        self.history.see(event, actions)
        self.events += 1
        for action in actions:
            self._keep(action)
        rollouts = self.core.status(self.now).to_json()["rollouts"]
        del rollouts["uploads_refused"]
        assert rollouts == self.history.counts()
        assert rollouts["issued"] == rollouts["trained"] + rollouts["open"] + sum(rollouts["dropped"].values())

    def _keep(self, action: Action) -> None:
        match action:
            case StoreRollout(rollout_id):
                self.to_store.append(rollout_id)
            case ScoreRollout(rollout_id):
                self.to_score.append(rollout_id)
            case RecordBatch(step):
                self.to_record.append(step)
            case SupplyPrompts(count):
                self.to_supply.append(count)
            case RecordEpoch(epoch):
                self.to_open.append(epoch)
            case SendLeases(peer_id, leases):
                self.grants += [(peer_id, lease) for lease in leases]
            case _:
                pass

    @property
    def newest(self) -> int:
        return self.core.newest_version or 0

    # ------------------------------------------------------------ the honest machinery, as slow as it likes

    def supply(self) -> None:
        if self.to_supply:
            count = self.to_supply.pop()
            first, self.prompts_made = self.prompts_made, self.prompts_made + count
            self.handle(PromptsSupplied(tuple(prompt(number) for number in range(first, first + count))))

    def store(self) -> None:
        if self.to_store:
            self.handle(RolloutStored(self.to_store.pop(self.random.randrange(len(self.to_store)))))

    def score(self) -> None:
        if self.to_score:
            rollout_id = self.to_score.pop(self.random.randrange(len(self.to_score)))
            if self.failures.random() < 0.05:
                self.handle(ScoringFailed(rollout_id, "exception", "", self.failures.random() < 0.8))
            else:
                self.handle(RolloutScored(rollout_id, 1.0))

    def record(self) -> None:
        if self.to_record:
            self.handle(BatchRecorded(self.to_record.pop()))

    def learner(self) -> None:
        next_step = self.core.recorded_batches
        opened = self.core.epochs.newest
        number = max(self.newest + 1, 0 if opened is None else opened.step_to)
        if number <= next_step and self.random.random() < 0.5:
            self.handle(VersionAnnounced(self.core.epoch, Version(number), 16))
        self.handle(BatchRequested(Step(max(0, next_step + self.random.choice([0, 0, 0, 0, -1, 1])))))

    def learner_rolls_back(self) -> None:
        """Resume at the state of an earlier version, or of none; now and then before the newest recorded batch."""
        if self.epochs:
            common = self.random.choice([None, *range(max(0, self.newest - 3), self.newest + 1)])
            step = Step(max(0, self.core.recorded_batches - self.random.choice([0, 0, 0, 1])))
            for _ in range(self.random.choice([1, 1, 2])):
                self.handle(EpochRequested(self.events, step, None if common is None else Version(common)))
            while self.to_open:
                self.handle(EpochRecorded(self.to_open.pop(0)))

    def learner_is_profiled(self) -> None:
        """Order a trace, or report on one: the newest, an earlier one or none; the learner may be restarted."""
        self.handle(LearnerCalled())
        if self.random.random() < 0.3:
            order = ProfileOrder(f"profile-{self.events}", self.random.randint(1, 20), False)
            self.handle(ProfileRequested(order, self.random.choice([1.0, 10.0])))
            self.profiled = self.random.choice([self.profiled, order.profile_id])
        done = self.random.randrange(21)
        report = ProfileReport(self.profiled, done or None, done, self.random.random() < 0.2, "folder", done, "")
        self.handle(ProfileReported(self.random.choice([report, report, report, None])))

    def time_passes(self) -> None:
        self.now += self.random.choice([0.1, 0.5, 2.0])
        self.handle(Tick())

    # ------------------------------------------------------------ peers

    def peer_asks(self) -> None:
        peer = self.random.choice(PEERS)
        self.handle(heartbeat(peer, active=max(0, self.newest - self.random.choice([0, 0, 0, 1]))))
        self.handle(wants(peer, self.random.randint(0, 6)))

    def peer_holds(self) -> None:
        version = Version(max(0, self.newest + self.random.choice([0, 0, 0, -1, 1])))
        self.handle(VersionHeld(PeerId(self.random.choice(PEERS)), self.core.epochs.epoch_of(version), version))

    def peer_uploads(self) -> None:
        if not self.grants:
            return
        peer, lease = self.grants.pop(self.random.randrange(len(self.grants)))
        for slot in lease.slots:
            version = self.newest - self.random.choice([0, 0, 0, 0, 0, 1, 1, 2, 3, -1])
            item = rollout(lease, slot.sample_index, segments=self.drawn(peer, Version(max(0, version))))
            self.sent.append((peer, item))
            if self.random.random() < 0.95:
                self.upload(peer, item)

    def drawn(self, peer: str, version: Version) -> tuple[Segment, ...]:
        """Return a completion, now and then begun with the version before."""
        versions = [Version(max(0, version - 1)), version] if self.random.random() < 0.2 else [version]
        epoch_of = self.core.epochs.epoch_of
        tokens = [5] * (len(versions) - 1) + [1]
        return tuple(
            Segment("assistant", epoch_of(one), one, PeerId(peer), pack_ids((token,)), b"\x01")
            for one, token in zip(versions, tokens, strict=True)
        )

    def peer_repeats_or_lies(self) -> None:
        if not self.sent:
            return
        peer, item = self.random.choice(self.sent)
        values = {name: getattr(item, name) for name in Rollout.__slots__}
        match self.random.randrange(6):
            case 0:
                values["fencing_token"] = FencingToken(item.fencing_token + 1)
            case 1:
                values["lease_id"] = LeaseId(item.lease_id + 1)
            case 2:
                values["finish_reason"] = "interrupted"
            case 3:
                peer = self.random.choice(PEERS)
            case _:
                pass
        self.upload(peer, Rollout(**values))

    def upload(self, peer: str, item: Rollout) -> None:
        self.uploads += 1
        self.handle(received(peer, self.uploads, item))

    def peer_returns(self) -> None:
        if self.grants:
            peer, lease = self.random.choice(self.grants)
            self.handle(LeasesReturned(PeerId(peer), (lease.lease_id,), "busy"))

    def peer_joins(self) -> None:
        peer = self.random.choice(PEERS)
        self.handle(replace(joined(peer, address="" if peer == "d" else "192.0.2.7:1"), host="192.0.2.7"))

    def peer_dies(self) -> None:
        self.handle(
            PeerLeft(PeerId(self.random.choice(PEERS)), "connection reset", finished=self.random.random() < 0.5)
        )

    def peers_arrive_together(self) -> None:
        self.handle(ArrivalsBegan())
        for _ in range(self.random.randint(1, 4)):
            self.random.choice([self.peer_asks, self.peer_uploads, self.peer_holds, self.peer_repeats_or_lies])()
        self.handle(ArrivalsEnded())

    def peer_drains(self) -> None:
        self.handle(heartbeat(self.random.choice(PEERS), state="draining", active=self.newest))

    def peer_accuses(self) -> None:
        accuser, culprit = self.random.choice(PEERS), self.random.choice(["c", "c", "origin", "nobody"])
        version, chunk = Version(self.newest + self.random.choice([0, 0, 0, 0, 1])), self.random.randrange(17)
        receipt = b"signed" if culprit == "c" and self.random.random() < 0.1 else b""
        self.handle(PeerAccused(PeerId(accuser), PeerId(culprit), version, chunk, "hash differs", receipt))

    def peer_tells_how_it_is_reached(self) -> None:
        peer, nat = self.random.choice(PEERS), self.random.choice(NAT_KINDS)
        circuits = ("/ip4/192.0.2.1/tcp/4001",) if self.random.random() < 0.5 else ()
        address = self.random.choice(["", "192.0.2.7:7000", "203.0.113.1:22"])
        self.handle(
            ReachabilityTold(
                PeerId(peer),
                nat,
                address,
                circuits,
                advertise=self.random.choice(["", "192.0.2.7:2", "203.0.113.1:2"]),
                local_address=self.random.choice(["", "192.168.1.2:7420"]),
            )
        )

    def peer_punches(self) -> None:
        peer, other = self.random.choice(PEERS), self.random.choice([*PEERS, "origin", "nobody"])
        self.handle(PunchRequested(PeerId(peer), PeerId(other)))
        self.punches += 1
        if self.random.random() < 0.5:
            one = self.random.randrange(1, self.punches + 1)
            self.handle(PunchEnded(PeerId(other), one, self.random.random() < 0.3, 1.0))

    def address_is_dialled(self) -> None:
        who = PeerId(self.random.choice(["", *PEERS]))
        self.handle(DialBackEnded(who, self.random.randrange(20), self.random.random() < 0.5, "refused"))

    def choices(self) -> dict[Callable[[], None], int]:
        """Return the steps that may happen next, with their weights."""
        return (
            {
                self.supply: 8,
                self.store: 16,
                self.score: 16,
                self.record: 8,
                self.learner: 8,
                self.learner_rolls_back: 1,
                self.time_passes: 3,
                self.peer_asks: 14,
                self.peer_holds: 6,
                self.peer_uploads: 20,
                self.peer_repeats_or_lies: 4,
                self.peer_returns: 1,
                self.peer_joins: 2,
                self.peer_dies: 1,
                self.peer_drains: 1,
                self.peer_accuses: 5,
            }
            | (self.reaching() if self.reach else {})
            | ({self.learner_is_profiled: 6} if self.profiles else {})
            | ({self.peers_arrive_together: 12} if self.arrivals else {})
        )

    def reaching(self) -> dict[Callable[[], None], int]:
        return {self.peer_tells_how_it_is_reached: 6, self.peer_punches: 6, self.address_is_dialled: 2}

    def run(self, events: int) -> None:
        """Take random steps, most of them useful."""
        weights = self.choices()
        while self.events < events:
            self.random.choices(list(weights), list(weights.values()))[0]()

    def end(self) -> None:
        """End the run, settle what is in flight, and check that nothing stays open and no call waits for an answer."""
        self.handle(RunEnded("enough", True))
        self.peer_uploads()
        self.peer_asks()
        self.record()
        while self.to_store:
            self.store()
        while self.to_score:
            self.score()
        status = self.core.status(self.now)
        assert status.rollouts.open == 0
        assert self.core._rollouts._storing == {}
        assert self.core.profile_due() is None


@hypothesis_settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([3, 1000]),
    st.sampled_from(["drop", "wait", "correct"]),
    st.booleans(),
    st.booleans(),
)
def test_random_runs_keep_every_invariant(
    seed: int, staleness_limit: int, finished_kept: int, late_policy: LatePolicy, reach: bool, arrivals: bool
) -> None:
    fleet = RandomFleet(
        seed,
        staleness_limit=staleness_limit,
        finished_attempts_kept=finished_kept,
        late_policy=late_policy,
        reach=reach,
        profiles=True,
        arrivals=arrivals,
    )
    fleet.run(events=400)
    fleet.end()


def test_random_runs_go_everywhere() -> None:
    """The property above would prove little if batches were never formed, or some reason never came up."""
    seen: Counter[str] = Counter()
    for seed in range(24):
        fleet = RandomFleet(seed)
        fleet.run(events=500)
        fleet.end()
        rollouts = fleet.core.status(fleet.now).rollouts
        seen.update({"trained": rollouts.trained} | rollouts.dropped)
        seen.update({f"refused {reason}": count for reason, count in rollouts.uploads_refused.items()})
        seen.update({f"age {age}": count for age, count in fleet.core.status(0.0).staleness_histogram.items()})
    expected = {"trained", "lease_expired", "peer_left", "returned", "revoked", "stale", "group_stale", "malformed"}
    refused = {"refused fenced", "refused late_duplicate", "refused busy", "refused run_ended"}
    expected |= {"rolled_back"}
    assert expected | {"run_ended", "age 0", "age 1", "age 2"} | refused <= seen.keys()
    assert seen["trained"] > 200


def test_memory_does_not_grow_with_the_length_of_a_run() -> None:
    fleet = RandomFleet(1, finished_attempts_kept=50)
    sizes = []
    for events in (1500, 3000):
        fleet.run(events)
        book = fleet.core._state.book
        sizes.append(len(book._groups) + len(book._filled) + len(book._finished) + len(book._live))
    assert max(sizes) < 150


@pytest.mark.parametrize("kept", [0, 1000])
def test_no_replay_is_ever_stored_twice(kept: int) -> None:
    """(lease, index) stays unique whatever the core has discarded; the history asserts it at StoreRollout."""
    fleet = RandomFleet(2, finished_attempts_kept=kept)
    fleet.run(events=400)
    stored = len(fleet.history.rollouts)
    fresh = {(lease.lease_id, slot.sample_index) for _, lease in fleet.grants for slot in lease.slots}
    for peer, item in list(fleet.sent):
        key = (item.lease_id, item.sample_index)
        if key not in fresh and key not in fleet.history.live:
            for _ in range(3):
                fleet.upload(peer, item)
    assert len(fleet.history.rollouts) == stored
