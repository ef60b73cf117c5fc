"""Share caps and meters between the links of one process: all of them leave through the same uplink."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from peer.config import LinkConfig
from peer.links.rates import DeliveredRate, Measured, RateMeter
from rollcast.wire.token_bucket import TokenBucket

# Bytes that may pass at once under a cap, in seconds of its rate.
_BURST_S = 0.05
# A connection under a download cap may have so much of it wait in the kernel, in seconds of its rate: enough for one
# connection to reach the cap at this round-trip time, and little compared with a minute of it.
_KERNEL_AHEAD_S = 0.2
_KERNEL_AHEAD_BYTES_MIN = 64 << 10
KERNEL_AHEAD_BYTES_MAX = 4 << 20
"""Largest kernel buffer, also of links whose cap was removed: Linux no longer adjusts a size that was set once."""


def is_lan_address(address: str) -> bool:
    """Return whether an IP address is private, link-local or this machine's own."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return ip.is_private or ip.is_loopback or ip.is_link_local


# A faster uplink has a queue that is short beside what it carries while it is measured.
_DELIVERED_BYTES_PER_SECOND_MOST = 2 << 20


class CountedLink(Protocol):
    """A link whose acknowledged bytes are counted."""

    def newly_acknowledged_bytes(self) -> int | None:
        """Return the bytes that were acknowledged since the last call; None if bytes were sent and it is not known."""


class TrafficClass:
    """Links that leave through the same uplink.

    Args:
        upload: cap on what they send; None: none.
        download: cap on what they receive; None: none.
        lan: whether they stay within a local network.
    """

    def __init__(self, upload: TokenBucket | None, download: TokenBucket | None, *, lan: bool = False) -> None:
        self.lan = lan
        self.upload = upload
        self.download = download
        self.meter = RateMeter()
        self.links: set[CountedLink] = set()
        """The open links."""
        self._delivered = DeliveredRate()
        self._waiting_links = 0

    @property
    def kernel_ahead_bytes(self) -> int | None:
        """Return how many bytes the kernel may receive before this process reads them; None if there is no limit.

        Such bytes have used the downlink already, so a cap must limit them as well.
        """
        if self.download is None:
            return None
        ahead_bytes = int(self.download.bytes_per_second * _KERNEL_AHEAD_S)
        return max(_KERNEL_AHEAD_BYTES_MIN, min(ahead_bytes, KERNEL_AHEAD_BYTES_MAX))

    @property
    def waiting_links(self) -> int:
        """Return the number of links with bytes that wait to leave."""
        return self._waiting_links

    def link_waits(self, waits: bool, now: float) -> None:
        """Note that bytes wait to leave on one more link, or on one less."""
        self._waiting_links += 1 if waits else -1
        self.meter.busy(self._waiting_links > 0, now)
        self._delivered.busy(self._waiting_links > 0, now)
        if self._delivered.due(now):
            self._delivered.delivered(self._newly_acknowledged_bytes(), now)

    def _newly_acknowledged_bytes(self) -> int | None:
        counts = [link.newly_acknowledged_bytes() for link in self.links]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def uplink(self, now: float) -> Measured:
        """Return the estimate of the uplink; all zeros if it was never busy. A slow one is measured by what arrived."""
        measured, delivered = self.meter.uplink(now), self._delivered.bytes_per_second
        slow = 0.0 < delivered < _DELIVERED_BYTES_PER_SECOND_MOST
        return replace(measured, bytes_per_second=delivered) if measured.measured_s and slow else measured


class LinkTraffic:
    """The traffic of a process, shared by all its transports.

    Args:
        is_lan: returns whether an address is on the local network. Traffic there does not measure the uplink to other
            networks, and is exempt from the caps unless the configuration includes it.
    """

    def __init__(self, config: LinkConfig, is_lan: Callable[[str], bool] = is_lan_address) -> None:
        self._is_lan = is_lan
        self._far = TrafficClass(None, None)
        self._near = TrafficClass(None, None, lan=True)
        self.cap(config)

    def cap(self, config: LinkConfig) -> None:
        """Apply new caps; chunks that wait already leave at the time set by the old ones."""
        upload, download = _bucket(config.upload_mbit_s_max), _bucket(config.download_mbit_s_max)
        self._far.upload, self._far.download = upload, download
        self._near.upload, self._near.download = (None, None) if config.lan_exempt else (upload, download)

    def of(self, address: str) -> TrafficClass:
        """Return the class of links to this IP address."""
        return self._near if self._is_lan(address) else self._far

    @property
    def far(self) -> TrafficClass:
        """Return the class of links beyond the local network."""
        return self._far

    def uplink(self, now: float) -> Measured:
        """Return the uplink to other networks; if nothing was sent there, that to the local network."""
        far = self._far.uplink(now)
        return far if far.measured_s else self._near.uplink(now)

    @property
    def moved_far_bytes(self) -> tuple[int, int]:
        """Return the bytes sent and received so far beyond the local network."""
        return self._far.meter.sent_bytes, self._far.meter.received_bytes

    @property
    def downlink_bytes_per_second(self) -> float:
        """Return the bytes of the fastest second lately, from other networks or, if none came, from the local one."""
        return self._far.meter.downlink_bytes_per_second or self._near.meter.downlink_bytes_per_second


def _bucket(mbit_s: float | None) -> TokenBucket | None:
    if mbit_s is None:
        return None
    bytes_per_second = mbit_s * 1e6 / 8
    return TokenBucket(bytes_per_second, bytes_per_second * _BURST_S)
