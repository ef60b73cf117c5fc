"""Slots of a head's leases as prompts, and the book of those that a cell has."""

from __future__ import annotations

from coordinator.core.events.events import Prompt
from coordinator.core.lent.lent import Lent, LentBook, is_lent, prompts_of
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, Version
from rollcast.wire.rollouts import LeaseGrant, Sampling, Slot

LEASE = LeaseGrant(
    lease_id=LeaseId(70),
    fencing_token=FencingToken(71),
    group_id=GroupId(9),
    prompt_token_ids=(10, 11),
    slots=(Slot(0, 5), Slot(3, (1 << 64) - 1)),
    sampling=Sampling(1.0, 12, (1,)),
    deadline_s=30.0,
    epoch=Epoch(0),
    oldest_useful_version=Version(4),
    oldest_own_version=Version(6),
)


def test_each_slot_of_a_lease_is_a_prompt_that_names_it() -> None:
    first, second = prompts_of(LEASE)
    assert first.prompt_token_ids == second.prompt_token_ids == (10, 11)
    assert first.problem_id == Lent.problem_id((LeaseId(70), 0))
    lent = Lent.of(second)
    assert lent == Lent(LeaseId(70), FencingToken(71), GroupId(9), 3, (1 << 64) - 1, Version(6), 12)
    assert lent.key == (LeaseId(70), 3)


def test_a_problem_of_the_runs_own_task_is_no_slot_of_a_head() -> None:
    assert not is_lent("problem-1")
    assert Lent.of(Prompt("problem-1", (1,), "{}")) is None


def test_a_slot_is_taken_once_and_not_again_when_it_is_over() -> None:
    book = LentBook()
    key, other = (LeaseId(1), 0), (LeaseId(1), 1)
    assert book.add(key)
    assert not book.add(key)
    assert book.add(other)
    book.opened(key, GroupId(5))
    assert (len(book), book.leases(), book.slots_of(LeaseId(1))) == (2, [LeaseId(1)], [key, other])
    assert book.end(key) == (True, GroupId(5))
    assert book.end(key) == (False, None)
    assert not book.add(key)
    assert book.end(other) == (True, None)
    assert (len(book), book.leases()) == (0, [])
