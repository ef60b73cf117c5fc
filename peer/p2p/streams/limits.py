"""Bounds on the memory and connections of a libp2p host, which shares its process with a rollout engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Bounds and deadlines; none depends on how much memory the rest of the process has.

    Args:
        window_bytes: bytes received on each link ahead of what the relay has taken. 60 MB/s at a round trip of 100 ms
            need 6 MB.
        links_most: most open links at a time, and, counted apart, most half-open lanes.
        dials_most: most dials in flight; further ones are refused at once.
        opening_timeout_s: seconds from a lane to its opening, and from the first lane of a link to the second.
        silence_timeout_s: seconds without a sign of life after which the other end of a link counts as lost.
        strangers_timeout_s: seconds after which a connection without a link, circuit or reservation is closed; that of
            a peer that did not show a certificate of the run is closed in any case.
        strangers_most: most connections of such peers at a time; further ones are closed at once.
    """

    window_bytes: int = 8 << 20
    links_most: int = 64
    dials_most: int = 32
    opening_timeout_s: float = 5.0
    silence_timeout_s: float = 30.0
    strangers_timeout_s: float = 15.0
    strangers_most: int = 16
