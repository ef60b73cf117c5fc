from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from rollcast.wire.versions.parallel import in_order, threads_for_a_pass


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_results_keep_the_order_of_their_items(threads: int) -> None:
    turn = threading.Condition()
    finished: list[int] = []

    def work(item: int) -> int:
        # With several threads, every even item waits until the odd one after it is done.
        with turn:
            if threads > 1 and item % 2 == 0:
                assert turn.wait_for(lambda: item + 1 in finished, timeout=10)
            finished.append(item)
            turn.notify_all()
        return -item

    assert list(in_order(work, range(20), threads)) == [-item for item in range(20)]
    assert (finished == sorted(finished)) == (threads == 1)


def test_few_items_are_taken_ahead() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    results = in_order(lambda item: item, items(), 3)
    assert next(results) == 0
    assert len(taken) == 6
    assert next(results) == 1
    assert len(taken) == 7


@pytest.mark.parametrize("threads", [1, 3])
def test_a_failure_comes_in_its_turn(threads: int) -> None:
    results = in_order(lambda item: 1 // (5 - item), range(10), threads)
    assert [next(results) for _ in range(5)] == [0, 0, 0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_the_threads_of_a_pass_follow_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 1), (2, 1), (8, 2), (64, 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        assert threads_for_a_pass() == threads
