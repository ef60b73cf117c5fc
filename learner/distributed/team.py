"""Pass the orders with which process 0 leads the other processes of a distributed learner.

A computation over all devices runs only if every process starts it, with the same inputs and in the same order. The
leader alone talks to coordinator and origin. Before each such computation it posts an order to the key-value store of
jax's coordination service; the order names the computation and carries its small inputs (a batch, never weights). The
others carry out orders one after the other. A barrier with a deadline after each order shows that all have it.

A lost process is noticed by jax's heartbeats, a broken collective, or a deadline here: no wait for another process is
without one, except that of an idle team for its next order. In each case this process ends at once with a status that
its supervisor knows (learner/distributed/supervisor.py), because a clean shutdown takes minutes when a process is
missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np

from rollcast.runtime.errors import ProcessFailed

# The coordination service uses gRPC, whose messages have at most 4 MiB.
PART_BYTES = 1 << 20
ORDER_BYTES_MAX = 1 << 30
_POLL_MS = 2_000
_PREFIX = "rollcast/order"
_STOP = "rollcast/stop"
_MEETING = "rollcast/meeting"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Order:
    """One computation: its name, its input arrays, and a text (JSON) if it needs one."""

    name: str
    arrays: Mapping[str, Array] = field(default_factory=dict)
    text: str = ""


class Store(Protocol):
    """The part of jax's coordination service that is used. Each call raises RuntimeError if it fails or times out."""

    def key_value_set_bytes(self, key: str, value: bytes) -> None: ...

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> bytes: ...

    def key_value_try_get_bytes(self, key: str) -> bytes: ...

    def key_value_delete(self, key: str) -> None: ...

    def wait_at_barrier(self, barrier_id: str, timeout_in_ms: int) -> None: ...


class Team:
    """Pass orders from the leader to all others. Methods block; only one thread of a process may post or take.

    Args:
        store: key-value store of the coordination service.
        timeout_s: seconds for the others to take an order or to come to a meeting, and for the leader to complete an
            order that it has started to post.
        operation_timeout_s: seconds for an operation of all processes.
        on_late: called on another thread, with the error, if an operation takes longer; it must end the process, whose
            thread may be in a collective that never returns.

    Raises:
        ProcessFailed: raised by every method if another process was lost or does not answer in time.
    """

    def __init__(
        self, store: Store, timeout_s: float, operation_timeout_s: float, on_late: Callable[[ProcessFailed], None]
    ) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._operation_timeout_s = operation_timeout_s
        self._on_late = on_late
        self._number = 0

    @contextmanager
    def lead(self, order: Order) -> Iterator[None]:
        """Post an order, and watch the body, which carries it out in the leader."""
        self.post(order)
        with self.watched(order):
            yield

    @contextmanager
    def watched(self, order: Order) -> Iterator[None]:
        """Limit the time that the body takes to carry out an order; it waits for all processes to do the same."""
        late = ProcessFailed(
            f"the learner processes did not carry out {order.name!r} together within {self._operation_timeout_s:g} s",
            cause="one of them is stuck, or too slow",
            fix="look for the process that is at another operation, or raise distributed.operation_timeout_s",
        )
        timer = threading.Timer(self._operation_timeout_s, self._on_late, [late])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def post(self, order: Order) -> None:
        """Post an order, and return once every process has it."""
        key, data = self._key(), encode(order)
        parts = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
        try:
            for index, part in enumerate(parts):
                self._store.key_value_set_bytes(f"{key}/{index}", part)
            self._store.key_value_set_bytes(key, str(len(parts)).encode())
            self._store.wait_at_barrier(f"{key}/taken", int(1000 * self._timeout_s))
            for index in range(len(parts)):
                self._store.key_value_delete(f"{key}/{index}")
            self._store.key_value_delete(key)
        except RuntimeError as error:
            raise lost(error, f"all processes to take the order {order.name!r}") from None
        self._number += 1

    def take(self) -> Order:
        """Return the next order, waiting for it as long as the leader is alive."""
        key = self._key()
        try:
            count = int(self._wait_for(key))
            if not 1 <= count <= ORDER_BYTES_MAX // PART_BYTES:
                raise RuntimeError(f"an order claims {count} parts, which is impossible")
            timeout_ms = int(1000 * self._timeout_s)
            parts = [self._store.blocking_key_value_get_bytes(f"{key}/{index}", timeout_ms) for index in range(count)]
            self._store.wait_at_barrier(f"{key}/taken", timeout_ms)
        except RuntimeError as error:
            raise lost(error, "the leader's next order") from None
        self._number += 1
        return decode(b"".join(parts))

    def meet(self, place: str) -> None:
        """Wait until every process calls this with the same name, which is used once; on any thread."""
        try:
            self._store.wait_at_barrier(f"{_MEETING}/{place}", int(1000 * self._timeout_s))
        except RuntimeError as error:
            raise lost(error, f"all processes to meet at {place!r}") from None

    def ask_to_stop(self) -> None:
        """Ask the leader, from any process, to stop in order."""
        try:
            self._store.key_value_set_bytes(_STOP, b"1")
        except RuntimeError as error:
            if "ALREADY_EXISTS" not in str(error):
                raise lost(error, "the leader's store") from None

    def asked_to_stop(self) -> bool:
        """Return, in the leader, whether any process received a request to stop."""
        try:
            return bool(self._store.key_value_try_get_bytes(_STOP))
        except RuntimeError as error:
            if "NOT_FOUND" in str(error):
                return False
            raise lost(error, "its own store") from None

    def _key(self) -> str:
        return f"{_PREFIX}/{self._number}"

    def _wait_for(self, key: str) -> bytes:
        # No deadline: jax ends this process when its heartbeats to the leader fail, and an idle leader is no failure.
        while True:
            started_s = time.monotonic()
            try:
                return self._store.blocking_key_value_get_bytes(key, _POLL_MS)
            except RuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error) or time.monotonic() - started_s < 0.5 * _POLL_MS / 1000:
                    raise


def encode(order: Order) -> bytes:
    """Encode an order as bytes.

    Raises:
        ValueError: it is larger than ORDER_BYTES_MAX.
    """
    arrays = {
        name: (str(leaf.dtype), leaf.shape, np.ascontiguousarray(leaf).tobytes()) for name, leaf in order.arrays.items()
    }
    data = msgspec.msgpack.encode((order.name, order.text, arrays))
    if len(data) > ORDER_BYTES_MAX:
        raise ValueError(f"an order has {len(data)} bytes, more than {ORDER_BYTES_MAX}")
    return data


def decode(data: bytes) -> Order:
    """Decode the result of encode."""
    kind = tuple[str, str, dict[str, tuple[str, tuple[int, ...], bytes]]]
    name, text, arrays = msgspec.msgpack.decode(data, type=kind)
    return Order(
        name,
        {key: np.frombuffer(leaf, np.dtype(dtype)).reshape(shape) for key, (dtype, shape, leaf) in arrays.items()},
        text,
    )


def lost(error: Exception, waited_for: str) -> ProcessFailed:
    """Return the error for the loss of another process of the learner, while this one waited for something."""
    return ProcessFailed(
        f"a process of the learner was lost while this one waited for {waited_for}",
        cause=f"{type(error).__name__}: {str(error)[:300]}",
        fix="nothing, if it happens once: the supervisors restart all processes from the newest checkpoint",
    )
