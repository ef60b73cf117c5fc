"""Keep finished rollouts until the coordinator's verdict, or until their leases are too old."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from peer.worker.core.events import Verdict
from rollcast.wire.ids import LeaseId
from rollcast.wire.rollouts import Rollout

UPLOAD_ROLLOUTS_MAX = 64  # rollouts in one upload: one verdict stream, one commit at the coordinator
UPLOAD_ROUTES_BYTES_MAX = 16 << 20  # of an upload's routes; its last rollout may exceed it
UPLOADS_IN_FLIGHT_MAX = 2  # one is answered while the next is sent
BUSY = "busy"  # the verdict of a coordinator whose verifiers are behind: the rollout is sent again

# Memory of a finished rollout's token in this process: an int, a float, their places in two tuples, a mask byte.
TOKEN_BYTES = 80
ROLLOUT_BYTES = 1024  # the rest of a rollout

Key = tuple[LeaseId, int]


@dataclass(frozen=True, slots=True)
class Spooled:
    """A rollout and the time after which it is no longer accepted."""

    rollout: Rollout
    gone_s: float


class Spool:
    """Every rollout here is either ready to be sent or part of exactly one upload in flight."""

    def __init__(self) -> None:
        self._ready: dict[Key, Spooled] = {}
        self._in_flight: dict[int, dict[Key, Spooled]] = {}
        self._not_before_s = 0.0
        self._next_upload_id = 1
        self.size_bytes = 0
        """The memory of the rollouts in the spool, estimated."""

    def __len__(self) -> int:
        count = len(self._ready)
        if not self._in_flight:
            return count
        for upload in self._in_flight.values():
            count += len(upload)
        return count

    def is_full(self, bytes_max: int) -> bool:
        """Return whether no batch may begin; the running one may exceed the bound by the rollouts that it holds."""
        return self.size_bytes >= bytes_max

    def lease_ids(self) -> set[LeaseId]:
        """Return the leases that have rollouts in the spool."""
        kept = [self._ready, *self._in_flight.values()]
        return {lease_id for rollouts in kept for lease_id, _ in rollouts}

    def add(self, rollout: Rollout, gone_s: float) -> None:
        """Keep a rollout until its verdict."""
        self._ready[_key(rollout)] = Spooled(rollout, gone_s)
        self.size_bytes += _size_bytes(rollout)

    def start_upload(self, now: float) -> tuple[int, tuple[Rollout, ...]] | None:
        """Return the next upload's id and rollouts, oldest first; None if nothing can be sent now."""
        if not self._ready or now < self._not_before_s or len(self._in_flight) >= UPLOADS_IN_FLIGHT_MAX:
            return None
        upload: dict[Key, Spooled] = {}
        routes_bytes = 0
        for key in list(self._ready)[:UPLOAD_ROLLOUTS_MAX]:
            upload[key] = self._ready.pop(key)
            routes_bytes += _routes_bytes(upload[key].rollout)
            if routes_bytes >= UPLOAD_ROUTES_BYTES_MAX:
                break
        upload_id, self._next_upload_id = self._next_upload_id, self._next_upload_id + 1
        self._in_flight[upload_id] = upload
        return upload_id, tuple(spooled.rollout for spooled in upload.values())

    def answered(self, upload_id: int, verdicts: Iterable[Verdict], retry_at_s: float) -> list[tuple[Rollout, Verdict]]:
        """Apply verdicts; rollouts without a verdict, or with the verdict `busy`, become ready to be sent again.

        Returns:
            The rollouts whose verdict is final.
        """
        upload = self._in_flight.pop(upload_id, {})
        final: list[tuple[Rollout, Verdict]] = []
        for verdict in verdicts:
            key = (verdict.lease_id, verdict.sample_index)
            if key in upload and verdict.reason != BUSY:
                rollout = upload.pop(key).rollout
                self.size_bytes -= _size_bytes(rollout)
                final.append((rollout, verdict))
        if upload:
            self._again(upload, retry_at_s)
        return final

    def failed(self, upload_id: int, retry_at_s: float) -> None:
        """Note that an upload failed; its rollouts become ready to be sent again."""
        self._again(self._in_flight.pop(upload_id, {}), retry_at_s)

    def retry_now(self) -> None:
        """Send without waiting for a retry: the coordinator is connected again, or the worker stops."""
        self._not_before_s = 0.0

    def expire(self, now: float) -> int:
        """Drop rollouts that are too late, except in flight, where the verdict decides; return how many."""
        if not self._ready:
            return 0
        return self._drop([key for key, spooled in self._ready.items() if now >= spooled.gone_s])

    def revoke(self, lease_ids: Iterable[LeaseId]) -> int:
        """Drop rollouts of these leases, except in flight; return how many."""
        revoked = set(lease_ids)
        return self._drop([key for key in self._ready if key[0] in revoked])

    def clear(self) -> int:
        """Drop all rollouts; return how many."""
        dropped = len(self)
        self._ready.clear()
        self._in_flight.clear()
        self.size_bytes = 0
        return dropped

    def next_wake_s(self) -> float:
        """Return when ``start_upload`` or ``expire`` may next have an effect; infinity if never."""
        if not self._ready:
            return math.inf
        times = [spooled.gone_s for spooled in self._ready.values()]
        if len(self._in_flight) < UPLOADS_IN_FLIGHT_MAX:
            times.append(self._not_before_s)
        return min(times)

    def _again(self, upload: dict[Key, Spooled], retry_at_s: float) -> None:
        self._ready = {**upload, **self._ready}
        self._not_before_s = max(self._not_before_s, retry_at_s)

    def _drop(self, keys: list[Key]) -> int:
        for key in keys:
            self.size_bytes -= _size_bytes(self._ready.pop(key).rollout)
        return len(keys)


def _key(rollout: Rollout) -> Key:
    return rollout.lease_id, rollout.sample_index


def _size_bytes(rollout: Rollout) -> int:
    tokens = sum(segment.token_count for segment in rollout.segments)
    return ROLLOUT_BYTES + TOKEN_BYTES * tokens + _routes_bytes(rollout)


def _routes_bytes(rollout: Rollout) -> int:
    return sum(len(segment.routes) + len(segment.context_routes) for segment in rollout.segments)


def counted(answered: Iterable[tuple[Rollout, Verdict]]) -> tuple[int, Counter[str]]:
    """Return how many rollouts were accepted complete, and the others by reason; an interrupted one counts as such."""
    accepted, refused = 0, Counter[str]()
    for rollout, verdict in answered:
        if rollout.finish_reason == "interrupted":
            refused["interrupted"] += 1
        elif verdict.accepted:
            accepted += 1
        else:
            refused[verdict.reason] += 1
    return accepted, refused
