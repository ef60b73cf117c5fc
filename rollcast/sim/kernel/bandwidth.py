"""A wide-area network in virtual time: access links shared by flows, as ideal congestion control would share them.

A node's uplink serves its open flows in turns, a piece at a time; a piece then travels for the one-way delays of both
ends and queues at the receiver's downlink. A flow waits while its receiver's downlink already has a full queue on its
way, so a slow downlink holds back those who send to it and nobody else. Nothing is lost and each flow stays in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rollcast.sim.kernel.event_queue import Agenda

WOKEN_AT_ONCE = 16  # senders that wait for a downlink, and may go on when something of its queue has been taken
WATCH_S = 1.0
QUEUE_S = 0.05  # of the downlink's rate: what may wait in front of it


@dataclass(slots=True)
class Frame:
    """``sent`` is called once less than the port's low water is left here, ``arrived`` at the other end."""

    left_bytes: float
    sent: Callable[[], None] | None
    arrived: Callable[[], None]


@dataclass(slots=True, eq=False)
class Flow:
    """One direction of a link."""

    sender: Port
    receiver: Port
    frames: deque[Frame] = field(default_factory=deque)
    open: bool = True
    waiting: bool = False  # for the receiver's downlink

    @property
    def delay_s(self) -> float:
        return self.sender.delay_s + self.receiver.delay_s


class Port:
    """One node's access link.

    Args:
        up_bytes_s, down_bytes_s: rates; may change at any time.
        delay_s: one way, to the middle of the network.
        piece_bytes: what a flow sends before the next one has its turn.
        low_water_bytes: a frame counts as sent when no more of it is left.
    """

    def __init__(
        self,
        agenda: Agenda,
        up_bytes_s: float,
        down_bytes_s: float,
        delay_s: float,
        *,
        piece_bytes: float = 8192.0,
        low_water_bytes: float = 16384.0,
    ) -> None:
        self.up_bytes_s = up_bytes_s
        self.down_bytes_s = down_bytes_s
        self.delay_s = delay_s
        self.sent_bytes = 0.0
        self._agenda = agenda
        self._piece_bytes = piece_bytes
        self._low_water_bytes = low_water_bytes
        self._turns: deque[Flow] = deque()
        self._sending = False
        self._coming_bytes = 0.0  # left the senders' uplinks, not received
        self._down_free_s = 0.0
        self._waiting: list[Flow] = []
        self._watched = False

    def send(self, flow: Flow, frame: Frame) -> None:
        """Queue a frame behind those that the flow has already."""
        flow.frames.append(frame)
        if len(flow.frames) == 1 and not flow.waiting:
            self._turns.append(flow)
            self._serve()

    def _serve(self) -> None:
        while self._turns and not self._sending:
            flow = self._turns.popleft()
            if not flow.open or not flow.frames:
                continue
            if flow.receiver.full(flow):
                flow.waiting = True
                flow.receiver._waiting.append(flow)
                continue
            piece_bytes = min(self._piece_bytes, flow.frames[0].left_bytes)
            self._sending = True
            self._agenda.after(piece_bytes / self.up_bytes_s, self._piece_left, flow, piece_bytes)

    def full(self, flow: Flow) -> bool:
        """Whether as much is on its way to this downlink as it takes in the flow's delay, and a full queue."""
        return self._coming_bytes > self.down_bytes_s * (QUEUE_S + flow.delay_s)

    def _piece_left(self, flow: Flow, piece_bytes: float) -> None:
        self._sending = False
        if flow.open:
            self.sent_bytes += piece_bytes
            frame = flow.frames[0]
            frame.left_bytes -= piece_bytes
            last = frame.left_bytes <= 0.0
            if last:
                flow.frames.popleft()
            if flow.frames:
                self._turns.append(flow)
            flow.receiver._coming_bytes += piece_bytes
            arrived = frame.arrived if last else None
            self._agenda.after(flow.delay_s, flow.receiver._queue, flow, piece_bytes, arrived)
            if frame.sent is not None and frame.left_bytes <= self._low_water_bytes:
                sent, frame.sent = frame.sent, None
                sent()
        self._serve()

    def _wake(self) -> None:
        """Let some of those send that wait for this downlink, the longest waiting first."""
        woken, self._waiting = self._waiting[:WOKEN_AT_ONCE], self._waiting[WOKEN_AT_ONCE:]
        if self._waiting and not self._watched:  # in case that none of those does
            self._watched = True
            self._agenda.after(WATCH_S, self._watch)
        for other in woken:
            other.waiting = False
            other.sender._turns.append(other)
            other.sender._serve()

    def _watch(self) -> None:
        self._watched = False
        if self._waiting:
            self._wake()

    def _queue(self, flow: Flow, piece_bytes: float, arrived: Callable[[], None] | None) -> None:
        self._down_free_s = max(self._down_free_s, self._agenda.now) + piece_bytes / self.down_bytes_s
        self._agenda.after(self._down_free_s - self._agenda.now, self._receive, flow, piece_bytes, arrived)

    def _receive(self, flow: Flow, piece_bytes: float, arrived: Callable[[], None] | None) -> None:
        self._coming_bytes -= piece_bytes
        if self._waiting:
            self._wake()
        if arrived is not None and flow.open:
            arrived()
