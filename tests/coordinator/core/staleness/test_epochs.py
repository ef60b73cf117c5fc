from __future__ import annotations

import pytest

from coordinator.core.events.actions import RecordEpoch
from coordinator.core.staleness.epochs import EpochBook
from rollcast.wire.ids import Epoch, Step, Version


def opened(epoch: int, step_from: int, step_to: int, common: int | None) -> RecordEpoch:
    return RecordEpoch(Epoch(epoch), Step(step_from), Step(step_to), None if common is None else Version(common))


#: Published 0..10; the learner reached version 7 again and went on at 11; later 12 again, and on at 15.
BOOK = EpochBook([opened(1, 10, 11, 7), opened(2, 14, 15, 12)])


def test_a_run_begins_in_epoch_0_and_nothing_is_an_orphan() -> None:
    book = EpochBook()
    assert (book.current, book.newest) == (0, None)
    assert book.valid(Epoch(0), Version(99))
    assert not book.valid(Epoch(1), Version(99))
    assert book.may_announce(Epoch(0), Version(3))
    assert book.after_empty(Step(4)) == 4


def test_a_number_belongs_to_one_epoch_and_orphans_are_those_after_the_common_state() -> None:
    assert [BOOK.epoch_of(Version(version)) for version in (0, 7, 10, 11, 14, 15, 99)] == [0, 0, 0, 1, 1, 2, 2]
    orphans = [version for version in range(20) if BOOK.is_orphan(Version(version))]
    assert orphans == [8, 9, 10, 13, 14]
    assert [BOOK.valid(Epoch(0), Version(version)) for version in (7, 8, 11)] == [True, False, False]
    assert BOOK.valid(Epoch(1), Version(12))


def test_only_the_current_epoch_announces_and_above_all_numbers_before() -> None:
    assert BOOK.may_announce(Epoch(2), Version(15))
    assert not BOOK.may_announce(Epoch(2), Version(14))
    assert not BOOK.may_announce(Epoch(1), Version(12))


def test_steps_whose_batches_are_empty_are_passed_over() -> None:
    assert [BOOK.after_empty(Step(step)) for step in (9, 10, 11, 14, 15)] == [9, 11, 11, 15, 15]
    chain = EpochBook([opened(1, 3, 5, None), opened(2, 5, 6, None)])
    assert chain.after_empty(Step(3)) == 6


def test_with_nothing_in_common_every_version_is_an_orphan() -> None:
    book = EpochBook([opened(1, 2, 4, None)])
    assert [book.is_orphan(Version(version)) for version in (0, 3, 4)] == [True, True, False]


@pytest.mark.parametrize(
    ("epochs", "what"),
    [
        ([opened(1, 0, 1, None), opened(1, 1, 2, None)], "epochs rise"),
        ([opened(1, 0, 3, None), opened(2, 2, 4, None)], "begins where"),
        ([opened(1, 3, 2, None)], "goes forward"),
    ],
)
def test_validate_names_what_is_wrong(epochs: list[RecordEpoch], what: str) -> None:
    BOOK.validate()
    with pytest.raises(AssertionError, match=what):
        EpochBook(epochs).validate()
