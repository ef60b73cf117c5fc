"""Pace the bytes that this peer relays for others: they count towards its caps like its own traffic. Pure."""

from __future__ import annotations

from peer.links.traffic import LinkTraffic
from peer.p2p.circuits.book import CircuitCaps
from rollcast.wire.token_bucket import TokenBucket

PORTION_BYTES = 256 << 10
"""Bytes granted at a time: large, because each grant is a hop between two threads, which costs 70 to 200 us."""


class RelayCaps:
    """The caps of one relay; times are seconds of the event loop's clock.

    Args:
        traffic: traffic of all links of the process; relayed bytes are added to it.
        caps: limits on relayed traffic alone.
    """

    def __init__(self, traffic: LinkTraffic, caps: CircuitCaps) -> None:
        self._traffic = traffic
        self.passed_bytes = 0
        """Bytes relayed so far, rounded to whole portions."""
        self._cap = TokenBucket(caps.bytes_per_second, PORTION_BYTES)

    def next_portion(self, now: float) -> float:
        """Take a portion from every cap, and return the seconds to wait before it may be relayed."""
        far = self._traffic.far
        caps = [cap for cap in (self._cap, far.upload, far.download) if cap is not None]
        return max(cap.take(PORTION_BYTES, now) for cap in caps)

    def passed(self, now: float) -> int:
        """Count a portion as received and sent, and return its size in bytes."""
        meter = self._traffic.far.meter
        meter.received(PORTION_BYTES, now)
        meter.sent(PORTION_BYTES, now)
        self.passed_bytes += PORTION_BYTES
        return PORTION_BYTES
