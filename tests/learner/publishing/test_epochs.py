from __future__ import annotations

from learner.publishing.epochs import EpochStart, Replay

STARTS = [EpochStart(1, 4, 6), EpochStart(2, 9, 9)]


def test_a_run_without_epochs_has_one_end_of_replay() -> None:
    replay = Replay(0, [], recorded_batches=3)
    assert [replay.jump(step) for step in range(4)] == [None] * 4
    assert [replay.ends(step) for step in (2, 3, 3, 4)] == [False, True, False, False]
    assert replay.epoch_starts_at == 0


def test_jumps_are_made_where_the_run_made_them_and_once() -> None:
    replay = Replay(0, STARTS, recorded_batches=12)
    assert replay.jump(3) is None
    assert replay.jump(4) == STARTS[0]
    assert replay.jump(6) is None
    assert replay.jump(9) == STARTS[1]
    assert replay.jump(9) is None


def test_nothing_is_published_where_an_epoch_left_off() -> None:
    replay = Replay(0, STARTS, recorded_batches=12)
    assert [replay.leaves_off(step) for step in (3, 4)] == [False, True]
    replay.jump(4)
    assert not replay.leaves_off(6)


def test_batches_recorded_meanwhile_are_trained_on_first() -> None:
    replay = Replay(0, [], recorded_batches=3)
    assert replay.ends(3)
    replay.extend(5)
    assert [replay.ends(step) for step in (3, 4, 5)] == [False, False, True]


def test_epochs_behind_a_checkpoint_are_over() -> None:
    replay = Replay(1, STARTS, recorded_batches=12)
    assert replay.epoch_starts_at == 6
    assert replay.jump(6) is None
    assert replay.jump(9) == STARTS[1]
    assert Replay(2, STARTS, recorded_batches=12).jump(12) is None
