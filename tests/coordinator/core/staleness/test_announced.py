from __future__ import annotations

from coordinator.core.events.actions import RecordEpoch
from coordinator.core.staleness.epochs import AnnouncedVersions, EpochBook
from rollcast.wire.ids import Epoch, Step, Version


def announced(*versions: int, epochs: EpochBook | None = None) -> AnnouncedVersions:
    return AnnouncedVersions({Version(version): 3 for version in versions}, epochs or EpochBook())


def test_only_announced_versions_are_known() -> None:
    versions = announced()
    assert not versions.may_contain(Version(0))
    for version in (0, 2, 4):
        versions.add(Version(version), version + 1, oldest_useful=Version(0))
    assert [version for version in range(7) if versions.may_contain(Version(version))] == [0, 2, 4]
    assert [versions.chunk_count(Version(version)) for version in (2, 3, 4)] == [3, None, 5]


def test_what_is_too_old_is_forgotten_but_never_called_unknown() -> None:
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


def test_restored_ones_go_on_and_orphans_are_withdrawn() -> None:
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
