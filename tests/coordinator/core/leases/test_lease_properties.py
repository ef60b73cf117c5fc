"""Leases under random joins, losses, returns, restarts, parts, deadlines and uploads: nothing is lost or done twice, no
slot has more than two live attempts, and an honest peer gets the work done in the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coordinator.core.core import CoordinatorCore
from coordinator.core.events.actions import (
    Action,
    CloseAttempt,
    CloseGroup,
    RecordAttempt,
    RecordBatch,
    RecordGroup,
    RevokeLeases,
    ScoreRollout,
    SendLeases,
    StoreRollout,
    SupplyPrompts,
)
from coordinator.core.events.events import (
    BatchRecorded,
    BatchRequested,
    Event,
    LeasesReturned,
    PartialReceived,
    PeerLeft,
    Prompt,
    PromptsSupplied,
    RolloutScored,
    RolloutStored,
    Started,
    Tick,
)
from coordinator.core.events.restored import Restored, RestoredAttempt, RestoredGroup, RestoredRollout
from rollcast.wire.ids import Epoch, GroupId, LeaseId, PeerId, RolloutId, Step, Version
from rollcast.wire.rollouts import FinishReason, LeaseGrant, PartialRollout, Rollout, Segment, Slot
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.core_world import announced, heartbeat, held, joined, prompt, received, rollout, settings, wants

PEERS = ("a", "b", "c")
Key = tuple[LeaseId, int]


class Book:
    """The contents of a ledger: only what was answered as durable counts."""

    def __init__(self) -> None:
        self.prompts: dict[GroupId, Prompt] = {}
        self.attempts: dict[Key, RecordAttempt] = {}
        self.closed: dict[Key, str] = {}
        self.stored: dict[RolloutId, Rollout] = {}
        self.scored: set[RolloutId] = set()
        self.trained: list[RolloutId] = []
        self.steps = 0
        self.over: set[GroupId] = set()
        self.filled: dict[tuple[GroupId, int], RolloutId] = {}

    def live(self) -> list[RecordAttempt]:
        done = {(one.lease_id, one.sample_index) for one in self.stored.values()}
        return [one for key, one in self.attempts.items() if key not in self.closed and key not in done]

    def restored(self, incarnation: int, newest: int) -> Restored:
        groups = []
        for group_id, text in self.prompts.items():
            if group_id in self.over:
                continue
            kept = [(rid, one) for rid, one in self.stored.items() if one.group_id == group_id]
            groups.append(
                RestoredGroup(
                    group_id,
                    text,
                    tuple(_attempt(one) for one in self.live() if one.group_id == group_id),
                    tuple(self._rollout(rid, one) for rid, one in kept if self._key(one) not in self.closed),
                )
            )
        return Restored(
            incarnation=incarnation,
            versions={Version(version): 16 for version in range(newest + 1)},
            recorded_batches=self.steps,
            last_group=max(self.prompts, default=0),
            last_rollout=max(self.stored, default=0) + 100 * incarnation,
            issued=len(self.attempts),
            accepted=len(self.stored),
            trained=len(self.trained),
            dropped=Counter(self.closed.values()),
            groups=tuple(groups),
        )

    @staticmethod
    def _key(one: Rollout) -> Key:
        return (one.lease_id, one.sample_index)

    def _rollout(self, rollout_id: RolloutId, one: Rollout) -> RestoredRollout:
        made_by = _attempt(self.attempts[self._key(one)])
        tokens = b"" if rollout_id in self.scored else one.packed_completion
        versions = (one.oldest_version, one.newest_version)
        return RestoredRollout(rollout_id, made_by, *versions, rollout_id in self.scored, tokens)


def _attempt(one: RecordAttempt) -> RestoredAttempt:
    return RestoredAttempt(one.lease_id, one.fencing_token, one.sample_index, one.peer_id)


class Leases(RuleBasedStateMachine):
    """A core, its ledger, and peers that may lose anything but the verdicts that they received."""

    @initialize()
    def begin(self) -> None:
        self.book, self.now, self.incarnation, self.newest, self.uploads, self.drawn = Book(), 0.0, 0, 0, 0, 0
        self.granted: dict[str, dict[Key, tuple[LeaseGrant, Slot]]] = {name: {} for name in PEERS}
        self.here: set[str] = set()
        self._start(None)
        self.handle(announced(0))

    def _start(self, restored: Restored | None) -> None:
        self.core = CoordinatorCore(settings(steps=10_000, staleness_limit=3, lease_deadline_s=20.0), restored)
        self.storing: dict[RolloutId, Rollout] = {}
        self.recording: list[RecordBatch] = []
        self.handle(Started())
        self.handle(joined("origin", role="origin"))

    def handle(self, event: Event) -> None:
        for action in self.core.handle(event, self.now):
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        book = self.book
        match action:
            case SupplyPrompts(count):
                numbers = range(self.drawn, self.drawn + count)
                self.drawn += count
                self.handle(PromptsSupplied(tuple(prompt(number % 20) for number in numbers)))
            case RecordGroup(group_id, problem_id, tokens, position):
                book.prompts[group_id] = Prompt(problem_id, tokens, position)
            case RecordAttempt():
                assert (action.lease_id, action.sample_index) not in book.attempts, "a lease id is used once, for ever"
                book.attempts[(action.lease_id, action.sample_index)] = action
            case CloseAttempt(lease_id, sample_index, reason):
                assert (lease_id, sample_index) not in book.closed, "closed once"
                book.closed[(lease_id, sample_index)] = reason
            case CloseGroup(group_id):
                book.over.add(group_id)
            case SendLeases(peer_id, leases):
                for lease in leases:
                    for slot in lease.slots:
                        self.granted[peer_id][(lease.lease_id, slot.sample_index)] = (lease, slot)
            case RevokeLeases(peer_id, lease_ids):
                held_by_it = self.granted[peer_id]
                self.granted[peer_id] = {key: one for key, one in held_by_it.items() if key[0] not in lease_ids}
            case StoreRollout(rollout_id, _, item):
                self.storing[rollout_id] = item
            case ScoreRollout(rollout_id):
                book.scored.add(rollout_id)
                self.handle(RolloutScored(rollout_id, 1.0))
            case RecordBatch():
                self.recording.append(action)
            case _:
                pass

    # ------------------------------------------------------------ the coordinator

    @rule()
    def store(self) -> None:
        for rollout_id, item in list(self.storing.items())[:2]:
            del self.storing[rollout_id]
            slot = (item.group_id, item.sample_index)
            assert slot not in self.book.filled, "no slot is filled twice"
            self.book.filled[slot] = rollout_id
            self.book.stored[rollout_id] = item
            self.handle(RolloutStored(rollout_id))

    @rule()
    def learn(self) -> None:
        self.handle(BatchRequested(Step(self.book.steps)))
        while self.recording:
            batch = self.recording.pop()
            assert not {*batch.rollout_ids} & {*self.book.trained}, "trained once"
            self.book.trained += batch.rollout_ids
            self.book.over |= {self.book.stored[one].group_id for one in batch.rollout_ids}
            self.book.steps += 1
            self.handle(BatchRecorded(batch.step))
            self.newest += 1
            self.handle(announced(self.newest))

    @rule()
    def crash(self) -> None:
        self.incarnation += 1
        self.here.clear()
        stored = {one for one in self.book.stored if self._counts(one)}
        self._start(self.book.restored(self.incarnation, self.newest))
        kept = {filling.rollout_id for group in self.core._state.book for filling in group.fillings()}
        assert kept == stored, "nothing that was stored is lost"

    def _counts(self, rollout_id: RolloutId) -> bool:
        one = self.book.stored[rollout_id]
        return rollout_id not in self.book.trained and (one.lease_id, one.sample_index) not in self.book.closed

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for name in ("origin", *sorted(self.here)):
            self.handle(heartbeat(name, active=self.newest if name in self.here else None))
        self.handle(Tick())

    # ------------------------------------------------------------ peers

    @rule(name=st.sampled_from(PEERS), forgot=st.booleans())
    def join(self, name: str, *, forgot: bool) -> None:
        if forgot:
            self.granted[name].clear()
        self.here.add(name)
        self.handle(joined(name))
        self.handle(held(name, self.newest))
        self.ask(name)

    @rule(name=st.sampled_from(PEERS))
    def ask(self, name: str) -> None:
        if name in self.here:
            self.handle(wants(name, max(0, 4 - len(self.granted[name]))))

    @rule(name=st.sampled_from(PEERS), finished=st.booleans())
    def leave(self, name: str, *, finished: bool) -> None:
        if finished:
            self.granted[name].clear()
        self.here.discard(name)
        self.handle(PeerLeft(PeerId(name), "gone", finished=finished))

    @rule(name=st.sampled_from(PEERS))
    def tell_a_part(self, name: str) -> None:
        for lease, slot in list(self.granted[name].values())[:1]:
            position = sum(len(one.token_ids) for one in slot.prefix)
            if name in self.here and position < 2:
                drawn = Segment("assistant", Epoch(0), Version(self.newest), PeerId(name), pack_ids((5,)), b"\1")
                part = PartialRollout(lease.lease_id, lease.fencing_token, slot.sample_index, position, (drawn,))
                self.handle(PartialReceived(PeerId(name), part))

    @rule(name=st.sampled_from(PEERS), interrupted=st.booleans(), again=st.booleans())
    def upload(self, name: str, *, interrupted: bool, again: bool) -> None:
        for key, (lease, slot) in list(self.granted[name].items())[:2]:
            item = rollout(lease, slot.sample_index, version=self.newest, peer=name)
            own = replace(item.segments[0], packed_ids=pack_ids((6,) if interrupted else (6, 1)))
            own = replace(own, loss_mask=b"\1" * len(own.token_ids))
            reason: FinishReason = "interrupted" if interrupted else "stop"
            item = replace(item, segments=(*slot.prefix, own), finish_reason=reason)
            for _ in range(1 + again):
                self.uploads += 1
                self.handle(received(name, self.uploads, item))
            del self.granted[name][key]

    @rule(name=st.sampled_from(PEERS))
    def hand_back(self, name: str) -> None:
        leases = tuple({key[0] for key in list(self.granted[name])[:2]})
        if name in self.here and leases:
            self.granted[name] = {key: one for key, one in self.granted[name].items() if key[0] not in leases}
            self.handle(LeasesReturned(PeerId(name), leases, "too much"))

    # ------------------------------------------------------------ always

    @invariant()
    def what_was_issued_is_trained_open_or_dropped(self) -> None:
        counts = self.core.status(self.now).rollouts
        assert counts.issued == counts.trained + counts.open + sum(counts.dropped.values())
        assert (counts.issued, counts.trained) == (len(self.book.attempts), len(self.book.trained))
        assert "malformed" not in counts.dropped, "nobody lies here"

    @invariant()
    def at_most_two_are_at_a_slot(self) -> None:
        at = Counter((one.group_id, one.sample_index) for one in self.book.live())
        assert max(at.values(), default=0) <= 2

    def teardown(self) -> None:
        """Check that after any history a peer that stays and works lets the learner continue."""
        self.join("a", forgot=True)
        goal = self.book.steps + 2
        for _ in range(80):
            self.time_passes(2.0)
            self.handle(held("a", self.newest))
            self.ask("a")
            while self.granted["a"]:
                self.upload("a", interrupted=False, again=False)
                self.ask("a")
            while self.storing:
                self.store()
            self.learn()
            if self.book.steps >= goal:
                return
        raise AssertionError("no batch is formed any more")


TestLeases = Leases.TestCase
TestLeases.settings = hypothesis_settings(max_examples=30, stateful_step_count=40, deadline=None)
