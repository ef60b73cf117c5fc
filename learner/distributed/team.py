"""Several learner processes that are one learner: process 0 leads, the others do the same computations.

A computation over all devices happens only if every process starts it, with the same inputs and in the same order.
The leader alone talks to coordinator and origin. Before each such computation it posts an order, which names the
computation and carries its small inputs (a batch, never weights), to the key-value store of jax's coordination service;
the others carry orders out one after the other. A barrier with a deadline after each order tells that all have it.

Who notices that a process is gone: jax's heartbeats, a broken collective, or a deadline here. Whatever it was, this
process ends at once with a status that its supervisor knows (learner/distributed/supervisor.py): waiting for a clean
end among
processes of which one is missing takes minutes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np

from rollcast.runtime.errors import ProcessFailed

# The coordination service's messages are gRPC's, of 4 MiB at most.
PART_BYTES = 1 << 20
ORDER_BYTES_MAX = 1 << 30
_POLL_MS = 2_000
_PREFIX = "rollcast/order"
_STOP = "rollcast/stop"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Order:
    """One computation: its name, host arrays, and a text (JSON) where it needs one."""

    name: str
    arrays: Mapping[str, Array] = field(default_factory=dict)
    text: str = ""


class Store(Protocol):
    """What is used of jax's coordination service. Each call raises RuntimeError when it fails or times out."""

    def key_value_set_bytes(self, key: str, value: bytes) -> None: ...

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> bytes: ...

    def key_value_try_get_bytes(self, key: str) -> bytes: ...

    def key_value_delete(self, key: str) -> None: ...

    def wait_at_barrier(self, barrier_id: str, timeout_in_ms: int) -> None: ...


class Team:
    """Orders from the leader to all others. Blocking; one thread a process posts or takes.

    Args:
        store: of the coordination service.
        timeout_s: for the others to take an order, and for the leader to give one once it has begun to.

    Raises:
        ProcessFailed: from every method, when another process is gone or does not answer in time.
    """

    def __init__(self, store: Store, timeout_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._number = 0

    def post(self, order: Order) -> None:
        """Give an order; returns once every process has it."""
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
            raise lost(error) from None
        self._number += 1

    def take(self) -> Order:
        """The next order; waits as long as the leader is there."""
        key = self._key()
        try:
            count = int(self._wait_for(key))
            if not 1 <= count <= ORDER_BYTES_MAX // PART_BYTES:
                raise RuntimeError(f"an order of {count} parts")
            timeout_ms = int(1000 * self._timeout_s)
            parts = [self._store.blocking_key_value_get_bytes(f"{key}/{index}", timeout_ms) for index in range(count)]
            self._store.wait_at_barrier(f"{key}/taken", timeout_ms)
        except RuntimeError as error:
            raise lost(error) from None
        self._number += 1
        return decode(b"".join(parts))

    def ask_to_stop(self) -> None:
        """Any process: have the leader end the run's life in good order."""
        try:
            self._store.key_value_set_bytes(_STOP, b"1")
        except RuntimeError as error:
            if "ALREADY_EXISTS" not in str(error):
                raise lost(error) from None

    def asked_to_stop(self) -> bool:
        """The leader: whether a process was told to stop."""
        try:
            return bool(self._store.key_value_try_get_bytes(_STOP))
        except RuntimeError as error:
            if "NOT_FOUND" in str(error):
                return False
            raise lost(error) from None

    def _key(self) -> str:
        return f"{_PREFIX}/{self._number}"

    def _wait_for(self, key: str) -> bytes:
        # jax ends this process when its heartbeats to the leader fail, so an idle leader may take its time.
        while True:
            started_s = time.monotonic()
            try:
                return self._store.blocking_key_value_get_bytes(key, _POLL_MS)
            except RuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error) or time.monotonic() - started_s < 0.5 * _POLL_MS / 1000:
                    raise


def encode(order: Order) -> bytes:
    """An order as bytes.

    Raises:
        ValueError: it is larger than an order may be.
    """
    arrays = {
        name: (str(leaf.dtype), leaf.shape, np.ascontiguousarray(leaf).tobytes()) for name, leaf in order.arrays.items()
    }
    data = msgspec.msgpack.encode((order.name, order.text, arrays))
    if len(data) > ORDER_BYTES_MAX:
        raise ValueError(f"an order of {len(data)} bytes")
    return data


def decode(data: bytes) -> Order:
    """The inverse of encode."""
    kind = tuple[str, str, dict[str, tuple[str, tuple[int, ...], bytes]]]
    name, text, arrays = msgspec.msgpack.decode(data, type=kind)
    return Order(
        name,
        {key: np.frombuffer(leaf, np.dtype(dtype)).reshape(shape) for key, (dtype, shape, leaf) in arrays.items()},
        text,
    )


def lost(error: Exception) -> ProcessFailed:
    """What to say when another process of the learner is gone."""
    return ProcessFailed(
        "a process of the learner is gone",
        cause=f"{type(error).__name__}: {str(error)[:300]}",
        fix="nothing, if it happens once: the supervisors start all of them again, from the newest checkpoint",
    )
