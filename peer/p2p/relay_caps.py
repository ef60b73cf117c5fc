"""When the next portion may be passed on for others: it comes and goes like our own, under the same caps. Pure."""

from __future__ import annotations

from peer.links.rates import TokenBucket
from peer.links.traffic import LinkTraffic
from peer.p2p.circuits.book import CircuitCaps

PORTION_BYTES = 256 << 10
"""Granted at a time: a hop between the threads costs 70 to 200 us."""


class RelayCaps:
    """Of one relay; times are seconds of the event loop's clock.

    Args:
        traffic: of all links of the process; what is passed on counts there too.
    """

    def __init__(self, traffic: LinkTraffic, caps: CircuitCaps) -> None:
        self._traffic = traffic
        self.passed_bytes = 0
        """So far, to a portion."""
        self._cap = TokenBucket(caps.bytes_per_second, PORTION_BYTES)

    def next_portion(self, now: float) -> float:
        """Take a portion from every cap; the seconds that it has to wait."""
        far = self._traffic.far
        caps = [cap for cap in (self._cap, far.upload, far.download) if cap is not None]
        return max(cap.take(PORTION_BYTES, now) for cap in caps)

    def passed(self, now: float) -> int:
        """Count a portion as received and sent; its size in bytes."""
        meter = self._traffic.far.meter
        meter.received(PORTION_BYTES, now)
        meter.sent(PORTION_BYTES, now)
        self.passed_bytes += PORTION_BYTES
        return PORTION_BYTES
