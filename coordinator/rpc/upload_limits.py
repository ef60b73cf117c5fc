"""Limit how often and how much identities, invites and addresses upload.

What a caller sends too fast is not read: HTTP/2's flow control then stops the sender, and honest ones only wait. A call
that would have to wait for long, or one too many at once, is refused with RC309, and the caller retries.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from rollcast.runtime.errors import RateLimited
from rollcast.wire.token_bucket import TokenBucket

_BURST_S = 1.0  # seconds of each rate that may come at once
_KEYS_MAX = 16_384  # whose buckets are kept; a full bucket is like none, so the ones used longest ago are dropped
_CALL_WAIT_MAX_S = 5.0


@dataclass(frozen=True, slots=True)
class UploadRates:
    """Limits per second. ``together``: how many times as much one invite, or one address, may do as one identity."""

    calls_per_second: float = 100.0
    bytes_per_second: float = 1 << 20
    calls_at_once: int = 4
    together: float = 32.0


class UploadLimits:
    """Keeps the buckets; a key is an identity, an invite or an address. ``now`` is monotonic, in seconds."""

    def __init__(self, rates: UploadRates) -> None:
        self._rates = rates
        self._calls: OrderedDict[str, TokenBucket] = OrderedDict()
        self._bytes: OrderedDict[str, TokenBucket] = OrderedDict()
        self._at_once: Counter[str] = Counter()

    def begin(self, identity: str, others: tuple[str, ...], now: float) -> float:
        """Count a call that begins; ``end`` must follow. Returns the seconds that it has to wait first.

        others: keys of the identity's invite and address.

        Raises:
            RateLimited: the identity has too many calls in progress, or would have to wait for long.
        """
        if self._at_once[identity] >= self._rates.calls_at_once:
            raise _refusal(f"{self._rates.calls_at_once} uploads of this identity are in progress")
        wait_s = self.next(identity, others, now)
        if wait_s > _CALL_WAIT_MAX_S:
            raise _refusal(f"more than {self._rates.calls_per_second:g} uploads a second")
        self._at_once[identity] += 1
        return wait_s

    def next(self, identity: str, others: tuple[str, ...], now: float) -> float:
        """Count a message of a stream, which counts as a call does; return the seconds that it has to wait."""
        rate = self._rates.calls_per_second
        return max(bucket.take(1, now) for bucket in self._of(self._calls, identity, others, rate))

    def end(self, identity: str) -> None:
        """Count the end of a call that ``begin`` admitted."""
        self._at_once[identity] -= 1
        if not self._at_once[identity]:
            del self._at_once[identity]

    def read(self, identity: str, others: tuple[str, ...], size_bytes: int, now: float) -> float:
        """Count bytes that were read; return the seconds to wait before the caller's next bytes are read."""
        rate = self._rates.bytes_per_second
        return max(bucket.spend(size_bytes, now) for bucket in self._of(self._bytes, identity, others, rate))

    def _of(
        self, buckets: OrderedDict[str, TokenBucket], identity: str, others: tuple[str, ...], per_second: float
    ) -> list[TokenBucket]:
        together = per_second * self._rates.together
        return [
            self._bucket(buckets, identity, per_second),
            *(self._bucket(buckets, key, together) for key in others),
        ]

    def _bucket(self, buckets: OrderedDict[str, TokenBucket], key: str, per_second: float) -> TokenBucket:
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = TokenBucket(per_second, _BURST_S * per_second)
            while len(buckets) > _KEYS_MAX:
                buckets.popitem(last=False)
        else:
            buckets.move_to_end(key)
        return bucket


def _refusal(cause: str) -> RateLimited:
    return RateLimited("this machine uploads too fast", cause=cause, fix="nothing: uploads are repeated later")
