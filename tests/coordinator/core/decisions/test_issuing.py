from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from coordinator.core.core import CoordinatorCore
from coordinator.core.decisions import issuing
from coordinator.core.decisions.issuing import LEASES_AT_ONCE, Round
from coordinator.core.events.actions import RecordAttempt, RecordGroup, RevokeLeases, SendLeases, SupplyPrompts
from coordinator.core.events.events import (
    ArrivalsBegan,
    ArrivalsEnded,
    BatchRequested,
    LeasesReturned,
    PeerLeft,
    PromptsSupplied,
    StepFinished,
    Tick,
)
from coordinator.core.leases.attempts import Attempt
from coordinator.core.leases.groups import Group, slot_seed
from coordinator.core.members.membership import Member
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, RolloutId, Step, Version
from rollcast.wire.rollouts import LeaseGrant, Slot
from tests.coordinator.core_world import (
    SAMPLING,
    World,
    announced,
    heartbeat,
    held,
    joined,
    only,
    prompt,
    settings,
    wants,
)


def seed(group: int, sample: int) -> int:
    return slot_seed(7, GroupId(group), sample)


def grant(lease: int, group: int, samples: list[int], *, oldest_useful: int = 0) -> LeaseGrant:
    return LeaseGrant(
        lease_id=LeaseId(lease),
        fencing_token=lease,  # type: ignore[arg-type]
        group_id=GroupId(group),
        prompt_token_ids=(10, group - 1),
        slots=tuple(Slot(sample, seed(group, sample)) for sample in samples),
        sampling=SAMPLING,
        deadline_s=30.0,
        epoch=Epoch(0),
        oldest_useful_version=Version(oldest_useful),
    )


def attempt(lease: int, group: int, sample: int, peer: str = "a") -> RecordAttempt:
    return RecordAttempt(LeaseId(lease), lease, GroupId(group), sample, seed(group, sample), PeerId(peer))  # type: ignore[arg-type]


def group(number: int) -> RecordGroup:
    made = prompt(number - 1)
    return RecordGroup(GroupId(number), made.problem_id, made.prompt_token_ids, made.mixture_position)


def test_slices_of_groups_go_to_requesting_peers_and_prompts_are_sampled_ahead() -> None:
    core = CoordinatorCore(settings())
    core.handle(joined("origin", role="origin"), 0.0)
    assert core.handle(joined("a"), 0.0)[-1] == SupplyPrompts(4)
    core.handle(PromptsSupplied(tuple(prompt(number) for number in range(4))), 0.0)
    core.handle(announced(0), 0.0)
    assert core.handle(wants("a", 3), 0.0) == []  # it holds no version yet
    assert core.handle(held("a", 0), 0.0) == [
        group(1),
        attempt(1, 1, 0),
        attempt(1, 1, 1),
        group(2),
        attempt(2, 2, 0),
        SendLeases(PeerId("a"), (grant(1, 1, [0, 1]), grant(2, 2, [0]))),
        SupplyPrompts(2),
    ]
    assert core.handle(wants("a", 1), 0.0) == [attempt(3, 2, 1), SendLeases(PeerId("a"), (grant(3, 2, [1]),))]


def test_a_peer_never_holds_more_than_its_capacity() -> None:
    world = World()
    world.start("a")
    world.handle(wants("a", 100))
    assert len(world.take("a")) == 4  # two generation batches of two
    world.handle(wants("a", 100))  # sent before it saw the leases
    assert world.take("a") == []


def test_one_event_gives_out_no_more_leases_than_the_loop_may_wait_for() -> None:
    core, names = CoordinatorCore(settings(groups_per_step=100)), [f"p{one}" for one in range(LEASES_AT_ONCE + 5)]
    core.handle(joined("origin", role="origin"), 0.0)
    core.handle(PromptsSupplied(tuple(prompt(number) for number in range(100))), 0.0)
    core.handle(announced(0), 0.0)
    for name in names:
        core.handle(joined(name), 0.0)
        core.handle(held(name, 0), 0.0)
    core.handle(ArrivalsBegan(), 0.0)
    for name in names:
        core.handle(wants(name, 1), 0.0)
    first, further = (
        [one.peer_id for one in core.handle(event, 0.0) if isinstance(one, SendLeases)]
        for event in (ArrivalsEnded(), Tick())
    )
    assert len(first) == LEASES_AT_ONCE
    assert sorted(first + further) == sorted(names)


def test_one_event_passes_over_no_more_members_than_the_loop_may_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuing, "PASSED_OVER_AT_ONCE", 3)
    monkeypatch.setattr(Round, "_grant_one", lambda round_, member: None)  # no work is in time for any of them
    world = World()
    world.start(*"abcde")
    world.handle(ArrivalsBegan())
    for name in "abcde":
        world.handle(wants(name, 1))
    world.handle(ArrivalsEnded())
    assert list(world.core.state.members.shares.places) == ["d", "e"]
    world.handle(Tick())
    assert not world.core.state.members.shares.places


def test_the_peer_that_holds_least_is_served_first_and_in_turns() -> None:
    world = World(staleness_limit=8)
    world.core.handle(joined("origin", role="origin"), 0.0)
    for name in ("a", "b"):
        world.handle(joined(name))
        world.handle(wants(name, 4))
    world.handle(announced(0))
    world.handle(held("a", 0))
    assert len(world.take("a")) == 4
    world.handle(joined("c"))
    for name in ("b", "c"):
        world.handle(wants(name, 0))
        world.handle(held(name, 0))
    world.handle(PeerLeft(PeerId("a"), "gone", finished=True))  # two groups are vacant now
    world.handle(wants("b", 2))
    assert [one.group_id for one, _ in world.take("b")] == [1, 1]
    world.handle(wants("c", 4))
    assert [one.group_id for one, _ in world.take("c")] == [2, 2, 3, 3]


def test_pacing_opens_only_what_will_be_young_enough() -> None:
    world = World(groups_per_step=2, staleness_limit=1)
    world.start("a", "b")
    world.handle(wants("a", 4))
    world.handle(wants("b", 4))
    assert len(world.take("a")) + len(world.take("b")) == 8  # batches 0 and 1: 4 groups
    world.handle(joined("c"))
    world.handle(held("c", 0))
    assert only(world.handle(wants("c", 4)), SendLeases) == []  # batch 2 needs version 1
    world.handle(announced(1))
    assert only(world.handle(held("c", 1)), SendLeases) == [
        SendLeases(PeerId("c"), (grant(5, 5, [0, 1], oldest_useful=1), grant(6, 6, [0, 1], oldest_useful=1)))
    ]


def test_a_vacant_slot_waits_for_a_peer_with_a_version_young_enough() -> None:
    world = World(groups_per_step=1, staleness_limit=0)
    world.start("a")
    world.handle(wants("a", 2))
    world.finish("a")
    world.handle(wants("a", 2))
    world.handle(BatchRequested(Step(0)))
    assert world.take("a") == []
    world.handle(announced(1))
    world.handle(joined("slow"))
    world.handle(wants("slow", 2))
    world.handle(held("slow", 0))
    assert world.take("slow") == []
    world.handle(held("a", 1))
    assert len(world.take("a")) == 2
    world.handle(PeerLeft(PeerId("a"), "gone", finished=True))
    assert world.take("slow") == []
    world.handle(heartbeat("slow", active=1))
    assert len(world.take("slow")) == 2


def test_no_group_beyond_the_last_step() -> None:
    world = World(steps=1, staleness_limit=5)
    world.start("a", "b")
    world.handle(wants("a", 4))
    assert only(world.handle(wants("b", 4)), SendLeases) == []
    assert world.prompts_made == 2
    world.finish("a")
    world.handle(BatchRequested(Step(0)))
    world.handle(StepFinished(Step(1), {}))
    assert world.core.status(0.0).rollouts.trained == 4
    assert world.core.status(0.0).rollouts.open == 0


def test_draining_and_quarantined_peers_get_nothing() -> None:
    world = World()
    world.start("a")
    world.handle(heartbeat("a", state="draining", active=0))
    assert only(world.handle(wants("a", 4)), SendLeases) == []
    assert only(world.handle(heartbeat("a", state="idle", active=0)), SendLeases) != []


def test_returned_slots_are_not_pushed_back_to_the_peer_that_returned_them() -> None:
    world = World()
    world.start("a", "b")
    world.handle(wants("a", 4))
    world.handle(wants("a", 4))
    world.handle(wants("b", 1))
    actions = world.handle(LeasesReturned(PeerId("a"), (LeaseId(1), LeaseId(999)), "shutting down"))
    assert only(actions, RevokeLeases) == []
    assert [one.peer_id for one in only(actions, SendLeases)] == []  # b has what it asked for
    assert only(world.handle(wants("b", 2)), SendLeases) == [SendLeases(PeerId("b"), (grant(4, 1, [0, 1]),))]


def test_a_lease_names_the_version_that_its_peer_was_chosen_for() -> None:
    world = World(groups_per_step=1, staleness_limit=4, steps=100)
    world.start("a")
    state, forecast = world.core._state, world.core._state.forecast
    for number in range(64):
        one = Attempt(LeaseId(number), FencingToken(1), GroupId(1), 0, PeerId("a"), 1e9, load=2)
        forecast.answered(one, 180.0, 100)
    for step in range(4):
        forecast.learner(60.0 * step, recorded=step, waits=False)
    state.batches.skip_to(Step(3))
    world.now = 180.0
    for version in (1, 2):
        world.handle(announced(version))
        world.handle(held("a", version))
    world.handle(wants("a", 2))
    assert [lease.oldest_useful_version for lease, _ in world.take("a")] == [1] * 2, "ready in 180 s, for batch 5"


def test_a_begun_group_is_completed_as_long_as_a_late_policy_lets_it_into_the_batch() -> None:
    world = World(groups_per_step=1, steps=100, staleness_limit=1, late_policy="correct", late_steps_max=1)
    world.start("a")
    world.handle(wants("a", 1))
    world.finish("a")  # one slot of the first group, with version 0
    world.core._state.batches.skip_to(Step(2))
    for version in (1, 2):
        world.handle(announced(version))
        world.handle(held("a", version))
    world.handle(wants("a", 1))
    ((lease, _),) = world.take("a")
    assert lease.group_id == 1, "it is 2 steps old, which is more than S and not more than the gate allows"
    assert lease.oldest_useful_version == 0, "the peer must not refuse what was generated with version 0 before"


def test_groups_that_are_too_late_keep_no_other_group_from_being_completed() -> None:
    world = World(groups_per_step=50, steps=100, staleness_limit=1)
    others = [f"other-{number}" for number in range(21)]
    world.start("a", *others)

    def begin_group(other: str, version: int) -> None:
        """Have a new group filled by "a" but for one slot, which another peer holds."""
        world.handle(wants("a", 1))
        world.finish("a", version=version)
        world.handle(wants(other, 1))
        assert len(world.take(other)) == 1

    for other in others[:20]:
        begin_group(other, 0)
    for version in (1, 2):
        world.handle(announced(version))
        for name in ("a", *others):
            world.handle(held(name, version))
    begin_group(others[20], 2)
    for other in others:
        world.handle(PeerLeft(PeerId(other), "gone", finished=True))
    world.core._state.batches.skip_to(Step(2))
    world.handle(wants("a", 2))
    assert [lease.group_id for lease, _ in world.take("a")] == [21, 22], "groups 1 to 20 are older than S"


class PlainRound(Round):
    """Looks at each open group, as the index by need must have the same result."""

    def _groups_in_time(
        self, member: Member, version: Version, attempt_s: float, load: int
    ) -> Iterator[tuple[int, Group, Version]]:
        book = self._state.book
        for groups_ahead, group in enumerate(book):
            if not book.open_slots(group) or (group.lent and version < group.lent.oldest_useful_version):
                continue
            oldest = self.oldest_to_begin(member, version, group, groups_ahead, load)
            if oldest is not None:
                yield groups_ahead, group, oldest


def begin_groups(core: CoordinatorCore, random: Random) -> None:
    """Open groups of four slots, with some rollouts of versions 2 to 6, and some slots in flight."""
    book, rollouts = core._state.book, count(1)
    for number in range(random.randint(1, 40)):
        group, filled = book.open_group(prompt(number)), random.randint(0, 3)
        attempts = book.issue(group, list(range(random.randint(filled, 4))) or [3], PeerId("a"), deadline=1e9)
        for one in attempts[:filled]:
            rollout_id, version = RolloutId(next(rollouts)), Version(random.randint(2, 6))
            book.fill(one, rollout_id, version, version)
            book.mark_stored(rollout_id)
            book.mark_scored(rollout_id, 1.0)


@given(seed=st.integers(0, 1 << 32))
def test_what_groups_need_leads_to_the_same_ones_as_a_look_at_each(seed: int) -> None:
    random, now = Random(seed), 300.0
    core = CoordinatorCore(
        settings(groups_per_step=5, samples_per_group=4, staleness_limit=3, steps=100, validate_every_event=False)
    )
    state = core._state
    for name in ("origin", *(f"peer-{number}" for number in range(8))):
        core.handle(joined(name, role="origin" if name == "origin" else "peer"), now)
    for version in range(7):
        core.handle(announced(version), now)
    begin_groups(core, random)
    state.batches.skip_to(Step(random.randint(3, 6)))
    waits = random.random() < 0.3
    for recorded in range(4):
        state.forecast.learner(60.0 * recorded, recorded=recorded, waits=waits)
    state.forecast.caution.learner_waited = random.random() < 0.3
    for number in range(64):
        one = Attempt(LeaseId(number), FencingToken(1), GroupId(1), 0, PeerId("measured"), 1e9, load=1)
        state.forecast.answered(one, 10.0 * 1.05**number, 100)
    peers = [one for one in state.members if one.role == "peer"]
    for peer in peers:
        took_s = random.choice([0.0, 8.0, 40.0, 60.0, 150.0])
        if took_s:
            one = Attempt(LeaseId(1), FencingToken(1), GroupId(1), 0, peer.peer_id, 1e9, now - took_s, load=1)
            state.forecast.answered(one, now, 100)
    found, expected = Round(state, now), PlainRound(state, now)
    for peer in peers:
        version, per_s = Version(random.randint(2, 6)), state.forecast.slots_per_s(peer.peer_id, now)
        attempt_s = 2 / per_s if per_s else state.forecast.typical_s_of_all or 0.0
        by_need, by_looking = (list(one._groups_in_time(peer, version, attempt_s, 2)) for one in (found, expected))
        assert by_need == by_looking
