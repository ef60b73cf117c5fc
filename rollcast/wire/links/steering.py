"""Adapt an open connection to its path as it is measured: congestion control, window, and part of the uplink."""

from __future__ import annotations

import socket

import structlog

from rollcast.wire.links.congestion import BBR, CongestionChoice, UplinkChoices
from rollcast.wire.links.tcp import (
    AUTO,
    UNCAPPED,
    WINDOW_BYTES,
    SocketOptions,
    acknowledged_bytes,
    bbr_problem,
    measure_path,
    open_window,
    pace,
    tune,
    use_congestion_control,
    window_bytes_for,
)
from rollcast.wire.links.uplink_share import UNLIMITED, SentFigures, UplinkShare

log = structlog.get_logger()

_LOOK_EVERY_S = 0.25
# Pacing keeps bursts out of the queues along a path. Within a building there are none worth it, and its timers and
# small segments would cost a fifth of the processor time of a link.
_PACED_FROM_RTT_S = 0.001
# A link within a local network does not use the uplink that the others share.
_SHARED_FROM_RTT_S = 0.005
_SMALL_BYTES = 1 << 10  # so few, of a message, do not count as waiting
_UPLINK = UplinkChoices()  # that of this process
_SHARE = UplinkShare()  # of the same
_GAP_S = 1.0  # bytes that come after a longer pause do not show how fast the link is


class LinkSteering:
    """The options of one link's socket, which are set here at first and change while bytes move."""

    def __init__(self, sock: socket.socket, options: SocketOptions) -> None:
        self._sock = sock
        self._auto = options.congestion_control == AUTO
        self._shares = False
        self._unpaced = options.pacing_bytes_per_second >= UNCAPPED
        self._choice = CongestionChoice(_UPLINK)
        self._sent_look_s = 0.0
        self._window_bytes = WINDOW_BYTES
        self._received_look_s = 0.0
        self._received_bytes = 0
        self._fixed = False
        self.congestion_control = self._system = tune(sock, options)
        """The name of the control in use; empty if the system does not report it."""

    @property
    def lost_share(self) -> float:
        """Return the share of segments that were lost lately; 0 if none was or it is unknown."""
        return self._choice.lost_share

    def fix_window(self) -> None:
        """Leave the receive window as it is: it limits the rate on purpose."""
        self._fixed = True

    def sending(self, now: float) -> None:
        """Look at the losses, if it is time; to be called whenever the socket takes bytes that waited."""
        if now < self._sent_look_s:
            return
        self._sent_look_s = now + _LOOK_EVERY_S
        path = measure_path(self._sock)
        if self._unpaced and path.least_rtt_s >= _PACED_FROM_RTT_S:
            self._unpaced = False
            self._shares = path.least_rtt_s >= _SHARED_FROM_RTT_S
            self.pace(UNLIMITED)
        if self._choice.look(path, now) and self._auto:
            self._change()

    def waits(self, waiting_bytes: int, now: float) -> None:
        """Note how many bytes wait to be sent: links with some share the uplink."""
        waiting = waiting_bytes > _SMALL_BYTES
        if waiting and self._unpaced:
            self.sending(now)
        if self._shares:
            _SHARE.waits(self, waiting, now)

    def ended(self, now: float) -> None:
        """Leave the uplink to the other links."""
        _SHARE.remove(self, now)

    def sent_figures(self) -> SentFigures | None:
        """See rollcast.wire.links.uplink_share."""
        acknowledged, path = acknowledged_bytes(self._sock), measure_path(self._sock)
        if acknowledged is None or not path.least_rtt_s:
            return None
        return SentFigures(acknowledged, max(0.0, path.rtt_s - path.least_rtt_s))

    def pace(self, bytes_per_second: int) -> None:
        """See rollcast.wire.links.uplink_share."""
        if self._sock.fileno() >= 0:
            pace(self._sock, bytes_per_second)

    def received(self, received_bytes: int, wake_bytes: int, now: float) -> None:
        """Look at the rate of what comes, if it is time.

        Args:
            received_bytes: bytes received since the link opened.
            wake_bytes: the bytes for which the socket wakes this process.
        """
        took_s = now - self._received_look_s
        if took_s < _LOOK_EVERY_S:
            return
        came_bytes, self._received_bytes = received_bytes - self._received_bytes, received_bytes
        self._received_look_s = now
        if took_s > _GAP_S or self._fixed:
            return
        path = measure_path(self._sock)
        wanted = window_bytes_for(came_bytes / took_s, path.least_rtt_s or path.rtt_s)
        if wanted > self._window_bytes:
            self._window_bytes = wanted
            open_window(self._sock, wanted, wake_bytes)

    def _change(self) -> None:
        share, problem = round(self._choice.lost_share, 4), bbr_problem() if self._choice.bbr else ""
        if problem:
            log.info("the path loses packets, and BBR cannot be used", lost_share=share, reason=problem)
            return
        self.congestion_control = use_congestion_control(self._sock, BBR if self._choice.bbr else self._system)
        log.info("congestion control changed", congestion_control=self.congestion_control, lost_share=share)
