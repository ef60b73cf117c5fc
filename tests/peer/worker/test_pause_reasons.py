from __future__ import annotations

from peer.worker.pause_reasons import Halt


def test_nothing_is_halted_at_first() -> None:
    halt = Halt()
    assert halt.draws
    assert halt.takes_work
    assert halt.in_words == ""
    assert halt.status(unfinished=3, unsent=1) is None


def test_the_gravest_reason_counts() -> None:
    halt = Halt(finishing="its owner asked")
    assert halt.draws
    assert not halt.takes_work
    assert halt.status(unfinished=3, unsent=1) == ("finishing", "its owner asked; 3 rollouts to go")
    halt.rest("hot", "resting", 5.0)
    assert (halt.draws, halt.in_words) == (False, "resting: hot")
    assert halt.stop("told to", 6.0)
    assert not halt.stop("told again", 7.0)
    assert (halt.since_s, halt.in_words) == (6.0, "stopping: told to")
    assert halt.status(unfinished=3, unsent=1) == ("draining", "told to; 1 finished rollouts to upload")


def test_another_reason_to_rest_does_not_begin_the_wait_anew() -> None:
    halt = Halt()
    halt.rest("hot", "resting", 5.0)
    halt.rest("paused by its owner", "paused", 6.0)
    assert (halt.since_s, halt.in_words) == (5.0, "paused: paused by its owner")
    halt.rest("", "resting", 7.0)
    assert halt.draws
