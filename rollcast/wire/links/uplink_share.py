"""Share an uplink between the links of one process: all are paced alike, together as fast as it carries. Pure.

TCP shares it by round trips: each full queue in front of the uplink costs every connection packets, and one with a
round trip of 200 ms gets half of what one of 50 ms gets. A peer far away would then lag behind in the chunks of every
relay, request them elsewhere as late, and receive them twice.

So where several links have bytes to send, they are paced: each at the same part of a total, which follows the wait in
front of the uplink. Without a queue the total grows. With a long one it becomes a little less than what the other ends
acknowledge. The wait shows in round trips, which also contain the waits in front of the other ends' uplinks: the least
by which one of the links is late counts. Where that stays long although less and less is sent, the queue is not this
process's, and nothing is limited for a while.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

UNLIMITED = 1 << 40
"""Bytes per second of a link that is not limited."""

_MEASURED_EVERY_S = 0.25
_MEASURED_S_MOST = 1.0  # after a longer pause, what was acknowledged does not show a rate
# A measurement shows how fast the uplink is if bytes waited for so much of it.
_BUSY_SHARE_LEAST = 0.95
_BUSY_MEASUREMENTS_FIRST = 4  # before anything is limited
_SMOOTHING = 0.3
# A queue of this length, or of this many packets on a slow uplink, is long; one of less than this share of it is none.
_QUEUE_S_LONG = 0.025
_QUEUE_PACKETS_LONG = 16
_PACKET_BYTES = 1500
_NO_QUEUE_SHARE = 0.4
# The total grows by ever more, up to this, as long as there is no queue, and to so many times what is acknowledged.
_STEP_FIRST = 0.02
_STEP_GROWTH = 1.5
_STEP_MOST = 0.06
_OF_ACKNOWLEDGED_MOST = 1.5
_OF_ACKNOWLEDGED_WITH_QUEUE = 1.15  # of one that is neither long nor none
_CUT_TO = 0.97
_OF_ACKNOWLEDGED_LEAST = 0.9
# After so many cuts in a row the queue is not this process's, and nothing is limited for so long.
_CUTS_MOST = 24
_UNLIMITED_S = 30.0
# Links of which only one sent for less than this share the uplink: in a broadcast the others go on at any moment.
_SHARED_S = 30.0
# A link is paced anew only if its rate changes by more than this.
_CHANGE_LEAST = 0.04
# When the last byte has left this process, the kernel still has so many to send (see tcp.set_unsent_bytes).
_KERNEL_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class SentFigures:
    """What a link has sent.

    Args:
        acknowledged_bytes: since the link was opened.
        late_s: by how much its round trips exceed the shortest one.
    """

    acknowledged_bytes: int
    late_s: float


class SharingLink(Protocol):
    """A link that shares the uplink."""

    def sent_figures(self) -> SentFigures | None:
        """Return the newest figures; None if they are not known."""

    def pace(self, bytes_per_second: int) -> None:
        """Send no faster than this."""


class UplinkShare:
    """The uplink of one process, and the links that share it."""

    def __init__(self) -> None:
        self._acknowledged: dict[SharingLink, int] = {}  # by all links, at the last measurement
        self._sending_until_s: dict[SharingLink, float] = {}  # infinity while bytes wait
        self._paced: dict[SharingLink, int] = {}
        self._total = 0.0  # bytes per second of all links together; 0: not limited
        self._rate = 0.0  # acknowledged per second while bytes waited, smoothed; 0: not known
        self._measurements = 0
        self._step = _STEP_FIRST
        self._cuts = 0
        self._unlimited_until_s = 0.0
        self._shared_until_s = -math.inf
        self._began_s = 0.0  # of the measurement
        self._waited_s = 0.0
        self._waiting_since_s: float | None = None

    def waits(self, link: SharingLink, waiting: bool, now: float) -> None:
        """Note whether bytes wait to be sent on a link from ``now`` on."""
        until_s = self._sending_until_s.get(link)
        if waiting == (until_s == math.inf):
            return
        if waiting:
            self._sending_until_s[link] = math.inf
        elif until_s is not None:
            self._sending_until_s[link] = now + _KERNEL_BYTES / self._paced.get(link, UNLIMITED)
        self._count_time(now)
        if now - self._began_s >= _MEASURED_EVERY_S:
            self._measure(now)
        self._pace(now)

    def remove(self, link: SharingLink, now: float) -> None:
        """Forget a link that has ended."""
        self.waits(link, False, now)
        for known in (self._acknowledged, self._sending_until_s, self._paced):
            known.pop(link, None)

    def _is_shared(self, now: float) -> bool:
        """Whether several links send, or did a moment ago.

        One alone has the uplink: TCP finds the rate of a fast one much sooner than the total grows.
        """
        if len(self._sending_until_s) > 1:
            self._shared_until_s = now + _SHARED_S
        return now < self._shared_until_s

    def _count_time(self, now: float) -> None:
        if self._waiting_since_s is not None:
            self._waited_s += now - self._waiting_since_s
        waiting = any(until_s == math.inf for until_s in self._sending_until_s.values())
        self._waiting_since_s = now if waiting else None

    def _pace(self, now: float) -> None:
        """Pace the links that send, if there is something to change."""
        if any(until_s <= now for until_s in self._sending_until_s.values()):
            self._sending_until_s = {link: until for link, until in self._sending_until_s.items() if until > now}
        shared = self._is_shared(now) and self._total > 0.0
        for link in self._sending_until_s:
            self._acknowledged.setdefault(link, -1)
            share = int(self._total / len(self._sending_until_s)) if shared else UNLIMITED
            if abs(share - self._paced.get(link, UNLIMITED)) > _CHANGE_LEAST * share:
                self._paced[link] = share
                link.pace(share)

    def _measure(self, now: float) -> None:
        took_s, busy = now - self._began_s, self._waited_s >= _BUSY_SHARE_LEAST * (now - self._began_s)
        self._began_s, self._waited_s = now, 0.0
        acknowledged_bytes, late_s = self._newly_acknowledged()
        if took_s > _MEASURED_S_MOST or not acknowledged_bytes or now < self._unlimited_until_s:
            return
        if busy:
            rate = acknowledged_bytes / took_s
            self._rate += (_SMOOTHING if self._rate else 1.0) * (rate - self._rate)
            self._measurements += 1
        if self._measurements >= _BUSY_MEASUREMENTS_FIRST and self._is_shared(now):
            self._steer(late_s, busy, now)

    def _newly_acknowledged(self) -> tuple[int, float]:
        """Return the bytes acknowledged since the last call, and the least by which one of their links is late."""
        total_bytes, late_s = 0, math.inf
        for link, before in self._acknowledged.items():
            figures = link.sent_figures()
            if figures is None:
                continue
            self._acknowledged[link] = figures.acknowledged_bytes
            if 0 <= before < figures.acknowledged_bytes:
                total_bytes += figures.acknowledged_bytes - before
                late_s = min(late_s, figures.late_s)
        return total_bytes, late_s

    def _steer(self, late_s: float, busy: bool, now: float) -> None:
        long_s = max(_QUEUE_S_LONG, _QUEUE_PACKETS_LONG * _PACKET_BYTES / self._rate)
        total = self._total or _OF_ACKNOWLEDGED_MOST * self._rate
        if late_s < _NO_QUEUE_SHARE * long_s:
            self._cuts = 0
            total *= 1.0 + self._step
            self._step = min(_STEP_MOST, _STEP_GROWTH * self._step)
            # While bytes do not always wait, only the absence of a queue is known, and no rate.
            self._total = min(total, max(self._total, _OF_ACKNOWLEDGED_MOST * self._rate)) if busy else total
            return
        self._total, self._step = total, _STEP_FIRST
        if late_s <= long_s:
            self._cuts = 0
            if busy:
                self._total = min(total, _OF_ACKNOWLEDGED_WITH_QUEUE * self._rate)
        elif busy:
            self._cuts += 1
            self._total = max(_OF_ACKNOWLEDGED_LEAST * self._rate, _CUT_TO * min(total, self._rate))
        if self._cuts >= _CUTS_MOST:
            self._total = self._rate = 0.0
            self._cuts = self._measurements = 0
            self._unlimited_until_s = now + _UNLIMITED_S
