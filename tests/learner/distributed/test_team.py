from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import numpy as np
import pytest

from learner.distributed.team import PART_BYTES, Order, Team, decode, encode
from rollcast.runtime.errors import ProcessFailed


class FakeStore:
    """The coordination service of two processes, in one: keys, and barriers that two threads must reach."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.longest = 0
        self._changed = threading.Condition()
        self._barriers: dict[str, threading.Barrier] = {}

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        with self._changed:
            if key in self.values:
                raise RuntimeError(f"ALREADY_EXISTS: {key}")
            self.values[key] = value
            self.longest = max(self.longest, len(value))
            self._changed.notify_all()

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, timeout_in_ms / 1000):
                raise RuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self.values[key]

    def key_value_try_get_bytes(self, key: str) -> bytes:
        with self._changed:
            if key not in self.values:
                raise RuntimeError(f"NOT_FOUND: {key}")
            return self.values[key]

    def key_value_delete(self, key: str) -> None:
        with self._changed:
            del self.values[key]

    def wait_at_barrier(self, barrier_id: str, timeout_in_ms: int) -> None:
        with self._changed:
            barrier = self._barriers.setdefault(barrier_id, threading.Barrier(2))
        try:
            barrier.wait(timeout_in_ms / 1000)
        except threading.BrokenBarrierError:
            raise RuntimeError(f"DEADLINE_EXCEEDED: {barrier_id}") from None


def team(
    store: FakeStore,
    *,
    timeout_s: float = 5.0,
    operation_timeout_s: float = 60.0,
    on_late: Callable[[ProcessFailed], None] = pytest.fail,
) -> Team:
    return Team(store, timeout_s, operation_timeout_s, on_late)


def test_an_order_comes_back_from_its_bytes() -> None:
    order = Order("train", {"a": np.arange(6, dtype=np.int64).reshape(2, 3), "b": np.array([True])}, "{}")
    found = decode(encode(order))
    assert (found.name, found.text) == ("train", "{}")
    for name, leaf in order.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], leaf)
        assert found.arrays[name].dtype == leaf.dtype


def test_orders_are_taken_in_turn_and_leave_nothing_behind() -> None:
    store = FakeStore()
    leader, follower = team(store), team(store)
    large = np.arange(PART_BYTES, dtype=np.uint8)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(lambda: [follower.take() for _ in range(2)])
        leader.post(Order("train", {"large": large, "more": large}))
        leader.post(Order("end", text="0"))
        first, second = taken.result(10.0)
    np.testing.assert_array_equal(first.arrays["more"], large)
    assert (first.name, second.name, second.text) == ("train", "end", "0")
    assert store.values == {}
    assert store.longest <= PART_BYTES


def test_an_order_that_is_not_taken_in_time_is_an_error() -> None:
    with pytest.raises(ProcessFailed, match="waited for all processes to take the order 'train'") as raised:
        team(FakeStore(), timeout_s=0.05).post(Order("train"))
    assert "DEADLINE_EXCEEDED" in raised.value.cause


def test_any_process_may_ask_to_stop() -> None:
    store = FakeStore()
    leader, follower = team(store), team(store)
    assert not leader.asked_to_stop()
    follower.ask_to_stop()
    follower.ask_to_stop()
    assert leader.asked_to_stop()


def test_processes_meet_and_a_missing_one_is_an_error() -> None:
    store = FakeStore()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: each.meet("frozen/1"), [team(store), team(store)]))
    with pytest.raises(ProcessFailed, match="waited for all processes to meet at 'frozen/2'"):
        team(store, timeout_s=0.01).meet("frozen/2")


def test_an_operation_that_takes_too_long_ends_the_process() -> None:
    errors: Queue[ProcessFailed] = Queue()
    store = FakeStore()
    leader, follower = (team(store, operation_timeout_s=0.01, on_late=errors.put) for _ in range(2))
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(follower.take)
        with leader.lead(Order("train")):
            late = errors.get(timeout=10.0)
        with follower.watched(taken.result(10.0)):
            assert str(errors.get(timeout=10.0)) == str(late)
    assert "did not carry out 'train' together" in str(late)
    with team(store).watched(Order("score")):
        pass
    assert errors.empty()
