"""What the links of one process share: the caps on their rates, and the meters that estimate its uplink."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from peer.config import LinkConfig
from peer.links.rates import Measured, RateMeter, TokenBucket

# What may pass at once under a cap, in seconds of its rate.
_BURST_S = 0.05
# A connection under a download cap may have so much of it wait in the kernel, in seconds of its rate: enough for one
# connection to reach the cap at this round-trip time, and little beside a minute of it.
_KERNEL_AHEAD_S = 0.2
_KERNEL_AHEAD_BYTES_MIN = 64 << 10
KERNEL_AHEAD_BYTES_MAX = 4 << 20
"""Also for links whose cap was taken away: the kernel never goes back to choosing for itself."""


def is_lan_address(address: str) -> bool:
    """Whether an IP address is private, link-local or our own machine's."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return ip.is_private or ip.is_loopback or ip.is_link_local


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
        self._waiting_links = 0

    @property
    def kernel_ahead_bytes(self) -> int | None:
        """How much the kernel may take from the network before we read it: that has used the downlink already.

        None: as much as it likes.
        """
        if self.download is None:
            return None
        ahead_bytes = int(self.download.bytes_per_second * _KERNEL_AHEAD_S)
        return max(_KERNEL_AHEAD_BYTES_MIN, min(ahead_bytes, KERNEL_AHEAD_BYTES_MAX))

    def link_waits(self, waits: bool, now: float) -> None:
        """One more link has something waiting to leave, or one less."""
        self._waiting_links += 1 if waits else -1
        self.meter.busy(self._waiting_links > 0, now)


class LinkTraffic:
    """Give one to all transports of a process.

    Args:
        is_lan: whether an address is on our own network. What goes there says nothing about the uplink to the
            others, and is exempt from the caps unless the configuration says otherwise.
    """

    def __init__(self, config: LinkConfig, is_lan: Callable[[str], bool] = is_lan_address) -> None:
        self._is_lan = is_lan
        self._far = TrafficClass(None, None)
        self._near = TrafficClass(None, None, lan=True)
        self.cap(config)

    def cap(self, config: LinkConfig) -> None:
        """Keep these caps from now on; chunks that wait already go when they were to go."""
        upload, download = _bucket(config.upload_mbit_s_max), _bucket(config.download_mbit_s_max)
        self._far.upload, self._far.download = upload, download
        self._near.upload, self._near.download = (None, None) if config.lan_exempt else (upload, download)

    def of(self, address: str) -> TrafficClass:
        """The class of links to this IP address."""
        return self._near if self._is_lan(address) else self._far

    @property
    def far(self) -> TrafficClass:
        """The class of links beyond our own network."""
        return self._far

    def uplink(self, now: float) -> Measured:
        """The uplink to others; where nothing was sent but to our own network, that to it."""
        far = self._far.meter.uplink(now)
        return far if far.measured_s else self._near.meter.uplink(now)

    @property
    def moved_far_bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far, beyond our own network."""
        return self._far.meter.sent_bytes, self._far.meter.received_bytes

    @property
    def downlink_bytes_per_second(self) -> float:
        """The fastest second of receiving lately, from others or, where nothing came from them, from our network."""
        return self._far.meter.downlink_bytes_per_second or self._near.meter.downlink_bytes_per_second


def _bucket(mbit_s: float | None) -> TokenBucket | None:
    if mbit_s is None:
        return None
    bytes_per_second = mbit_s * 1e6 / 8
    return TokenBucket(bytes_per_second, bytes_per_second * _BURST_S)
