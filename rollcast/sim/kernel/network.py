"""Simulate the internet between processes: ordered streams that wait while no packet gets through.

A byte stream over TCP neither loses nor reorders what it carries: loss shows as a later arrival, a partition as
silence. Different streams overtake each other. A message with a size takes the time that the fair share of both access
links gives it (bandwidth.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeVar

from rollcast.sim.kernel.bandwidth import Flow, Frame, Port
from rollcast.sim.kernel.event_queue import Agenda

_KeyT = TypeVar("_KeyT")


@dataclass(frozen=True, slots=True)
class Line:
    """An access link: rates in bytes per second, and the one-way delay to the middle of the network in seconds."""

    up_bytes_s: float = 1.25e7
    down_bytes_s: float = 2.5e7
    delay_s: float = 0.02
    dialable: bool = True
    relays: bool = True  # whether fluid broadcasts count the link's upload


@dataclass(frozen=True, slots=True)
class Weather:
    """The present delays and losses of messages."""

    loss: float = 0.0  # share of messages that TCP must retransmit
    resend_s: float = 0.3
    jitter_s: float = 0.0  # greatest additional delay of a message


class Network:
    """The nodes of the network, and which of them cannot reach which at the moment.

    Args:
        piece_bytes: bytes that a flow sends before the next flow has its turn.
    """

    def __init__(self, agenda: Agenda, random: Random, weather: Weather, *, piece_bytes: float = 65536.0) -> None:
        self.agenda = agenda
        self.weather = weather
        self._random = random
        self._piece_bytes = piece_bytes
        self.ports: dict[str, Port] = {}
        self.lines: dict[str, Line] = {}
        self._deaf: dict[str, int] = {}  # nodes that nothing reaches, with the number of cuts
        self._mute: dict[str, int] = {}  # nodes that nothing leaves, with the number of cuts
        self._apart: dict[tuple[str, str], int] = {}
        self._waiting: list[Stream] = []
        self.cuts = 0
        """Number of nodes and pairs that are cut off. At 0 all nodes reach each other, which is the fast path."""

    def add(self, name: str, line: Line) -> None:
        """Add a node with its access link."""
        self.lines[name] = line
        self.ports[name] = Port(
            self.agenda, line.up_bytes_s, line.down_bytes_s, line.delay_s, piece_bytes=self._piece_bytes
        )

    def delay_s(self, source: str, target: str) -> float:
        """Return the one-way delay between two nodes in seconds, without jitter or loss."""
        return self.lines[source].delay_s + self.lines[target].delay_s

    def message_s(self, delay_s: float) -> float:
        """Return the seconds that one small message takes now, given the delay without jitter or loss."""
        weather, seconds = self.weather, delay_s
        if weather.jitter_s:
            seconds += weather.jitter_s * self._random.random()
        while weather.loss and self._random.random() < weather.loss:
            seconds += weather.resend_s * (1.0 + self._random.random())
        return seconds

    # ---------------------------------------------------------------- partitions

    def reaches(self, source: str, target: str) -> bool:
        """Return whether packets get from one node to the other."""
        if not self.cuts:
            return True
        return (source, target) not in self._apart and source not in self._mute and target not in self._deaf

    def cut(self, source: str, target: str) -> None:
        """Drop everything from ``source`` to ``target`` until ``mend``; an empty name stands for all nodes."""
        if not source:
            self._deaf[target] = self._deaf.get(target, 0) + 1
        elif not target:
            self._mute[source] = self._mute.get(source, 0) + 1
        else:
            self._apart[(source, target)] = self._apart.get((source, target), 0) + 1
        self._count_cuts()

    def mend(self, source: str, target: str) -> None:
        """Undo one ``cut``; waiting messages are sent again."""
        if not source:
            _less(self._deaf, target)
        elif not target:
            _less(self._mute, source)
        else:
            _less(self._apart, (source, target))
        self._count_cuts()
        waiting, self._waiting = self._waiting, []
        for stream in waiting:
            stream.resume()

    def _count_cuts(self) -> None:
        self.cuts = len(self._apart) + len(self._mute) + len(self._deaf)

    def wait(self, stream: Stream) -> None:
        """Resume a stream when a cut is mended."""
        self._waiting.append(stream)


def _less(counts: dict[_KeyT, int], key: _KeyT) -> None:
    left = counts.get(key, 0) - 1
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)


def _discard(_: Any) -> None:
    """Deliver nothing: the stream is closed."""


class Stream:
    """One direction of a connection: messages arrive in order, unless the connection ends before.

    Args:
        deliver: called at the other end with each message.
    """

    __slots__ = ("_delay_s", "_deliver", "_flow", "_held", "_last_s", "_network", "open", "source", "target")

    def __init__(self, network: Network, source: str, target: str, deliver: Callable[[Any], None]) -> None:
        self.source = source
        self.target = target
        self.open = True
        self._network = network
        self._deliver = deliver
        self._delay_s = network.delay_s(source, target)
        self._last_s = 0.0
        self._held: deque[Any] = deque()
        self._flow: Flow | None = None

    def send(self, message: Any, size_bytes: float = 0.0, sent: Callable[[], None] | None = None) -> None:
        """Send a message; one without a size takes the delay only.

        Args:
            sent: called once a message with a size has left the sender's uplink.
        """
        if not self.open:
            return
        if not size_bytes:
            self._post(message)
        else:
            network = self._network
            if self._flow is None:
                self._flow = Flow(network.ports[self.source], network.ports[self.target])
            arrived = partial(self._arrive, message)
            network.ports[self.source].send(self._flow, Frame(size_bytes, sent, arrived))

    def close(self) -> None:
        """Close the stream; messages on their way are lost."""
        self.open = False
        self._deliver = _discard  # who delivers often holds the stream: no cycle is left to the garbage collector
        self._held.clear()
        if self._flow is not None:
            self._flow.open = False

    def resume(self) -> None:
        """Send the waiting messages again, after a cut was mended."""
        held, self._held = self._held, deque()
        for message in held:
            self._post(message)

    def _post(self, message: Any) -> None:
        agenda = self._network.agenda
        at_s = agenda.now + self._network.message_s(self._delay_s)
        if at_s < self._last_s:
            at_s = self._last_s
        self._last_s = at_s
        agenda.after(at_s - agenda.now, self._arrive, message)

    def _arrive(self, message: Any) -> None:
        if not self.open:
            return
        if self._held or (self._network.cuts and not self._network.reaches(self.source, self.target)):
            if not self._held:
                self._network.wait(self)
            self._held.append(message)
        else:
            self._deliver(message)
