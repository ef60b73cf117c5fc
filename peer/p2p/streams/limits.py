"""Bound what the libp2p host of a peer that also runs an engine may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Bounds and deadlines; none depends on how much memory the rest of the process has.

    Args:
        window_bytes: received ahead of what the relay took, on each link. 60 MB/s at a round trip of 100 ms need 6 MB.
        links_most: open at a time, and half-open lanes besides.
        dials_most: under way at a time; more are refused at once.
        opening_timeout_s: from a lane to its opening, and from the first lane of a link to the second.
        silence_timeout_s: an end that says nothing for this long is given up.
        strangers_timeout_s: a connection on which there is no link, circuit or reservation is closed after this long;
            one of a peer that did not show a certificate of the run in any case.
        strangers_most: connections of such peers at a time; more are closed at once.
    """

    window_bytes: int = 8 << 20
    links_most: int = 64
    dials_most: int = 32
    opening_timeout_s: float = 5.0
    silence_timeout_s: float = 30.0
    strangers_timeout_s: float = 15.0
    strangers_most: int = 16
