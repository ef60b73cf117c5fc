"""Finished rollouts on their way to the coordinator: kept until its verdict, or until they are too late. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from peer.worker.events import Verdict
from rollcast.wire.ids import LeaseId
from rollcast.wire.rollouts import Rollout

UPLOAD_ROLLOUTS_MAX = 64  # rollouts in one upload: one verdict stream, one commit at the coordinator
UPLOADS_IN_FLIGHT_MAX = 2  # one being answered while the next is sent
BUSY = "busy"  # the verdict of a coordinator whose verifiers are behind: to be sent again

# What a token of a finished rollout takes in this process: an int, a float, their places in two tuples, a mask byte.
TOKEN_BYTES = 80
ROLLOUT_BYTES = 1024  # the rest of a rollout

Key = tuple[LeaseId, int]


@dataclass(frozen=True, slots=True)
class Spooled:
    """A rollout and the time after which nobody wants it."""

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
        """Memory that the rollouts here take."""

    def __len__(self) -> int:
        count = len(self._ready)
        if not self._in_flight:
            return count
        for upload in self._in_flight.values():
            count += len(upload)
        return count

    def is_full(self, bytes_max: int) -> bool:
        """Then no batch begins; one under way may go over by what it holds."""
        return self.size_bytes >= bytes_max

    def lease_ids(self) -> set[LeaseId]:
        """Leases that have rollouts here."""
        kept = [self._ready, *self._in_flight.values()]
        return {lease_id for rollouts in kept for lease_id, _ in rollouts}

    def add(self, rollout: Rollout, gone_s: float) -> None:
        """Keep a rollout until its verdict."""
        self._ready[_key(rollout)] = Spooled(rollout, gone_s)
        self.size_bytes += _size_bytes(rollout)

    def start_upload(self, now: float) -> tuple[int, tuple[Rollout, ...]] | None:
        """The next upload, oldest rollouts first; None: nothing to send, or not now."""
        if not self._ready or now < self._not_before_s or len(self._in_flight) >= UPLOADS_IN_FLIGHT_MAX:
            return None
        upload = {key: self._ready.pop(key) for key in list(self._ready)[:UPLOAD_ROLLOUTS_MAX]}
        upload_id, self._next_upload_id = self._next_upload_id, self._next_upload_id + 1
        self._in_flight[upload_id] = upload
        return upload_id, tuple(spooled.rollout for spooled in upload.values())

    def answered(self, upload_id: int, verdicts: Iterable[Verdict], retry_at_s: float) -> list[tuple[Rollout, Verdict]]:
        """Take the verdicts in; what was not judged, or was met by `busy`, becomes ready again.

        Returns:
            the rollouts whose verdict is final.
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
        """The upload did not come through; its rollouts become ready again."""
        self._again(self._in_flight.pop(upload_id, {}), retry_at_s)

    def retry_now(self) -> None:
        """The coordinator is back: no need to wait."""
        self._not_before_s = 0.0

    def expire(self, now: float) -> int:
        """Drop what is too late, except in flight: there the verdict decides. Returns how many were dropped."""
        if not self._ready:
            return 0
        return self._drop([key for key, spooled in self._ready.items() if now >= spooled.gone_s])

    def revoke(self, lease_ids: Iterable[LeaseId]) -> int:
        """Drop rollouts of these leases, except in flight. Returns how many were dropped."""
        revoked = set(lease_ids)
        return self._drop([key for key in self._ready if key[0] in revoked])

    def clear(self) -> int:
        """Drop everything. Returns how many were dropped."""
        dropped = len(self)
        self._ready.clear()
        self._in_flight.clear()
        self.size_bytes = 0
        return dropped

    def next_wake_s(self) -> float:
        """When start_upload or expire may next have something to do; infinite: never."""
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
    return ROLLOUT_BYTES + TOKEN_BYTES * sum(len(segment.token_ids) for segment in rollout.segments)


def counted(answered: Iterable[tuple[Rollout, Verdict]]) -> tuple[int, Counter[str]]:
    """How many were accepted whole, and why the others were not; what was interrupted counts as that."""
    accepted, refused = 0, Counter[str]()
    for rollout, verdict in answered:
        if rollout.finish_reason == "interrupted":
            refused["interrupted"] += 1
        elif verdict.accepted:
            accepted += 1
        else:
            refused[verdict.reason] += 1
    return accepted, refused
