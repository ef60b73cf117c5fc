"""Test that a version is loaded besides the active one, then swapped when that is allowed."""

from __future__ import annotations

from peer.worker.core.events import ActivateVersion, LoadVersion
from peer.worker.core.version_swap import VersionSwap
from tests.peer.worker.core.worker_samples import key


def swap_at(version: int, epoch: int = 0) -> VersionSwap:
    swap = VersionSwap()
    swap.activated(key(version, epoch))
    return swap


def test_one_version_is_loaded_at_a_time_and_swapped_once_allowed() -> None:
    swap = VersionSwap()
    assert swap.step(may_swap=True) == []
    swap.verified(key(1))
    assert swap.step(may_swap=True) == [LoadVersion(key(1))]
    swap.verified(key(2))
    assert swap.step(may_swap=True) == []
    swap.loaded(key(1))
    assert swap.step(may_swap=True) == [ActivateVersion(key(1))]
    assert swap.step(may_swap=True) == []
    swap.activated(key(1))
    assert (swap.active, swap.step(may_swap=False)) == (key(1), [LoadVersion(key(2))])


def test_a_loaded_version_is_replaced_by_a_newer_one_while_a_batch_runs() -> None:
    swap = swap_at(1)
    swap.verified(key(2))
    assert swap.step(may_swap=False) == [LoadVersion(key(2))]
    swap.loaded(key(2))
    assert swap.step(may_swap=False) == []
    swap.verified(key(4))
    assert swap.step(may_swap=False) == [LoadVersion(key(4))]
    assert swap.step(may_swap=True) == []  # version 2 is not there any more, 4 not yet
    swap.loaded(key(4))
    assert swap.step(may_swap=True) == [ActivateVersion(key(4))]


def test_a_version_that_was_replaced_makes_room_for_the_one_that_replaced_it() -> None:
    swap = swap_at(1)
    swap.verified(key(2))
    assert swap.step(may_swap=True) == [LoadVersion(key(2))]
    swap.replaced(key(2))
    assert swap.step(may_swap=True) == []
    swap.verified(key(3))
    assert swap.step(may_swap=True) == [LoadVersion(key(3))]
    swap.verified(key(4))
    swap.replaced(key(3))
    assert swap.step(may_swap=True) == [LoadVersion(key(4))]


def test_versions_only_rise_and_epochs_never_fall() -> None:
    swap = swap_at(9, epoch=1)
    for older in (key(8), key(9), key(8, epoch=2), key(12, epoch=0)):
        swap.verified(older)
        assert swap.step(may_swap=True) == []
    swap.verified(key(13, epoch=2))
    assert swap.step(may_swap=True) == [LoadVersion(key(13, epoch=2))]


def test_the_newest_known_may_still_be_on_its_way() -> None:
    swap = swap_at(3)
    assert swap.newest_known == key(3)
    swap.announced(key(5))
    assert swap.newest_known == key(5)
    assert VersionSwap().newest_known is None
