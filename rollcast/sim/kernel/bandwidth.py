"""Simulate the bandwidth of a wide-area network: flows share access links as under ideal congestion control.

A node's uplink serves its open flows in turns, a piece at a time; a piece then travels for the one-way delays of both
ends and queues at the receiver's downlink. A flow waits while its receiver's downlink already has a full queue on its
way, so a slow downlink holds back only the flows towards it. Nothing is lost and each flow stays in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rollcast.sim.kernel.event_queue import Agenda

WOKEN_AT_ONCE = 16  # waiting senders that are woken when a downlink's queue shrinks; waking all of them costs too much
WATCH_S = 1.0  # seconds after which further senders are woken, in case that none of the woken ones sends
QUEUE_S = 0.05  # length of the queue in front of a downlink, in seconds at its rate


@dataclass(slots=True)
class Frame:
    """A message of a flow.

    Attributes:
        sent: called once no more than the port's low-water mark of the frame is left to send.
        arrived: called when the whole frame has arrived at the other end.
    """

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
    waiting: bool = False  # whether the flow waits for space in the queue of the receiver's downlink

    @property
    def delay_s(self) -> float:
        return self.sender.delay_s + self.receiver.delay_s


class Port:
    """One node's access link.

    Args:
        up_bytes_s, down_bytes_s: rates in bytes per second; they may be changed at any time.
        delay_s: one-way delay to the middle of the network, in seconds.
        piece_bytes: bytes that a flow sends before the next flow has its turn.
        low_water_bytes: a frame counts as sent when no more than this is left of it.
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
        self._coming_bytes = 0.0  # have left the senders' uplinks and are not received yet
        self._down_free_s = 0.0
        self._waiting: list[Flow] = []
        self._watched = False

    def send(self, flow: Flow, frame: Frame) -> None:
        """Queue a frame behind the flow's earlier ones."""
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
        """Return whether the bytes on their way to this downlink fill the flow's delay and the queue in front of it."""
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
        """Wake some of the flows that wait for this downlink, the longest waiting first."""
        woken, self._waiting = self._waiting[:WOKEN_AT_ONCE], self._waiting[WOKEN_AT_ONCE:]
        if self._waiting and not self._watched:  # the woken flows may have nothing left to send
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
