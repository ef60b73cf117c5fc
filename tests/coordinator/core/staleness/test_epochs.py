"""Epochs, and the versions announced in each."""

from __future__ import annotations

import pytest

from coordinator.core.events.actions import RecordEpoch
from coordinator.core.staleness.epochs import AnnouncedVersions, EpochBook
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
        ([opened(1, 0, 3, None), opened(2, 2, 4, None)], "begins at or after"),
        ([opened(1, 3, 2, None)], "goes forward"),
    ],
)
def test_validate_names_what_is_wrong(epochs: list[RecordEpoch], what: str) -> None:
    BOOK.validate()
    with pytest.raises(AssertionError, match=what):
        EpochBook(epochs).validate()


def announced(*versions: int, epochs: EpochBook | None = None) -> AnnouncedVersions:
    return AnnouncedVersions({Version(version): 3 for version in versions}, epochs or EpochBook())


def test_only_announced_versions_are_known() -> None:
    versions = announced()
    assert not versions.may_contain(Version(0))
    for version in (0, 2, 4):
        versions.add(Version(version), version + 1, oldest_useful=Version(0))
    assert [version for version in range(7) if versions.may_contain(Version(version))] == [0, 2, 4]
    assert [versions.chunk_count(Version(version)) for version in (2, 3, 4)] == [3, None, 5]


def test_old_versions_are_discarded_but_never_called_unknown() -> None:
    versions = announced()
    for version in range(0, 200, 2):
        versions.add(Version(version), 1, oldest_useful=Version(max(0, version - 40)))
    assert len(versions) == 21
    assert versions.may_contain(Version(7))
    assert versions.chunk_count(Version(8)) is None
    assert not versions.may_contain(Version(191))


def test_the_newest_stay_although_no_batch_can_use_them() -> None:
    versions = announced()
    for version in range(100):
        versions.add(Version(version), 1, oldest_useful=Version(1000))
    assert len(versions) == 8
    assert versions.chunk_count(Version(92)) == 1
    assert versions.latest(3) == [97, 98, 99]
    assert versions.latest(50) == list(range(92, 100))


def test_restored_versions_stay_and_orphans_are_withdrawn() -> None:
    epochs = EpochBook()
    versions = announced(40, 42, 43, epochs=epochs)
    assert versions.may_contain(Version(39))
    assert not versions.may_contain(Version(41))
    assert versions.is_published(Epoch(0), Version(43))
    epochs.open(RecordEpoch(Epoch(1), Step(44), Step(45), Version(42)))
    versions.withdraw_orphans()
    assert versions.latest(8) == [40, 42]
    assert not versions.may_contain(Version(43))
    assert not versions.is_published(Epoch(0), Version(43))
    assert not versions.is_published(Epoch(1), Version(42)), "it belongs to the epoch before"
