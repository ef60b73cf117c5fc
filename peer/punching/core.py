"""Who is dialled at the same moment as they dial us: what was asked, what was told, how many at once. Decisions only.

A hole through two routers takes two dials at one time (Ford, Srisuresh, Kegel 2005, "Peer-to-Peer Communication Across
Network Address Translators", section 4); the coordinator, with whom both have a session, says when. So an attempt of
ours begins with a question to it, one of somebody else's with its word, and without a session there are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rollcast.runtime.errors import RollcastError, Unreachable, WaitTimedOut
from rollcast.wire.ids import PeerId

RUNNING_MOST = 8
"""Attempts at a time; each holds two sockets and a TLS handshake."""
WAITING_MOST = 16
"""Questions to the coordinator without an answer."""
ANSWER_S = 2.0
"""Until the coordinator has said whether there is an attempt."""
DEADLINE_MOST_S = 10.0
"""Of an attempt, whatever the coordinator says."""
_RETRY_FIRST_S = 5.0
_RETRY_MOST_S = 600.0
_REFUSED_S = 1.0
_REMEMBERED_MOST = 4096


@dataclass(frozen=True, slots=True)
class Order:
    """The coordinator's word that both ends begin now (pb.Punch).

    Args:
        address: ip:port under which the other end is seen; empty: its router draws a port for each remote, we wait.
        serves: ours is the server's part in the TLS handshake.
        asked: we asked for it.
    """

    punch_id: int
    peer_id: PeerId
    address: str
    serves: bool
    asked: bool
    deadline_s: float


# ------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Wanted:
    """Somebody here wants a link to this peer and waits."""

    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class GaveUp:
    """Nobody waits for it any more."""

    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class Told:
    """The coordinator's word came."""

    order: Order


@dataclass(frozen=True, slots=True)
class Refused:
    """The coordinator's no came."""

    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Opened:
    """An attempt became a link."""

    punch_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt became none."""

    punch_id: int
    error: RollcastError


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The coordinator is there."""


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The coordinator is away."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; due at ``next_deadline_s``."""


Event = Wanted | GaveUp | Told | Refused | Opened | Failed | SessionOpened | SessionLost | Tick

# ------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the coordinator for an attempt."""

    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class Begin:
    """Dial and listen until the order's deadline; Opened or Failed follows."""

    order: Order


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the coordinator how an attempt ended."""

    punch_id: int
    opened: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Disappoint:
    """Tell whoever waits for a link to this peer why there is none."""

    peer_id: PeerId
    error: RollcastError


Action = Ask | Begin | Report | Disappoint


@dataclass(slots=True)
class _Running:
    order: Order
    began_at_s: float


@dataclass(slots=True)
class _Failures:
    count: int = 0
    again_at_s: float = 0.0


@dataclass(slots=True)
class PunchCore:
    """The state of one process."""

    _connected: bool = False
    _waiting: dict[PeerId, float] = field(default_factory=dict)  # for the coordinator's word, until then
    _running: dict[int, _Running] = field(default_factory=dict)
    _failures: dict[PeerId, _Failures] = field(default_factory=dict)

    @property
    def running(self) -> int:
        """Attempts under way."""
        return len(self._running)

    @property
    def next_deadline_s(self) -> float | None:
        """When a Tick is due; None: nothing is waited for."""
        return min(self._waiting.values(), default=None)

    def handle(self, event: Event, now: float) -> list[Action]:
        """What to do about it."""
        return list(self._handle(event, now))

    def _handle(self, event: Event, now: float) -> Iterator[Action]:
        match event:
            case Wanted(peer_id):
                yield from self._wanted(peer_id, now)
            case GaveUp(peer_id):
                self._waiting.pop(peer_id, None)
            case Told(order):
                yield from self._told(order, now)
            case Refused(peer_id, reason):
                self._waiting.pop(peer_id, None)
                self._rest(peer_id, _REFUSED_S, now)  # the coordinator knows better how long: it may be a moment
                yield Disappoint(peer_id, _cannot(peer_id, reason))
            case Opened(punch_id):
                yield from self._ended(punch_id, None, now)
            case Failed(punch_id, error):
                yield from self._ended(punch_id, error, now)
            case SessionOpened():
                self._connected = True
            case SessionLost():
                self._connected = False
                for peer_id in list(self._waiting):
                    del self._waiting[peer_id]
                    yield Disappoint(peer_id, _away(peer_id))
            case Tick():
                for peer_id in [one for one, until_s in self._waiting.items() if now >= until_s]:
                    late = WaitTimedOut(f"waited {ANSWER_S:g} s for the coordinator's word to dial {peer_id}")
                    yield from self._disappointed(peer_id, late, now)

    def _wanted(self, peer_id: PeerId, now: float) -> Iterator[Action]:
        failures = self._failures.get(peer_id)
        if not self._connected:
            yield Disappoint(peer_id, _away(peer_id))
        elif peer_id in self._waiting or any(one.order.peer_id == peer_id for one in self._running.values()):
            yield Disappoint(peer_id, _cannot(peer_id, "an attempt is under way"))
        elif len(self._waiting) >= WAITING_MOST or len(self._running) >= RUNNING_MOST:
            yield Disappoint(peer_id, _cannot(peer_id, "too many others are tried just now"))
        elif failures is not None and now < failures.again_at_s:
            wait_s = failures.again_at_s - now
            yield Disappoint(
                peer_id, _cannot(peer_id, f"after {failures.count} failures no other try for {wait_s:.1f} s")
            )
        else:
            self._waiting[peer_id] = now + ANSWER_S
            yield Ask(peer_id)

    def _told(self, order: Order, now: float) -> Iterator[Action]:
        """Both ends were told; one that does not take part says so, and the coordinator need not wait."""
        waited = self._waiting.pop(order.peer_id, None) is not None
        if order.asked and not waited:
            yield Report(order.punch_id, False, 0.0)  # whoever asked has gone
        elif order.punch_id in self._running or len(self._running) >= RUNNING_MOST:
            if waited:
                yield Disappoint(order.peer_id, _cannot(order.peer_id, "too many others are tried just now"))
            yield Report(order.punch_id, False, 0.0)
        else:
            if waited and not order.asked:  # the two questions crossed; the link is theirs to ask for, ours to accept
                yield Disappoint(order.peer_id, _cannot(order.peer_id, "it dials us at this moment"))
            self._running[order.punch_id] = _Running(order, now)
            yield Begin(order)

    def _ended(self, punch_id: int, error: RollcastError | None, now: float) -> Iterator[Action]:
        running = self._running.pop(punch_id, None)
        if running is None:
            return
        peer_id = running.order.peer_id
        yield Report(punch_id, error is None, now - running.began_at_s)
        if error is None:
            self._failures.pop(peer_id, None)
        elif running.order.asked:
            yield from self._disappointed(peer_id, error, now)

    def _disappointed(self, peer_id: PeerId, error: RollcastError, now: float) -> Iterator[Action]:
        """Each failure doubles the pause; a router's kind does not change by trying."""
        self._waiting.pop(peer_id, None)
        count = self._failures[peer_id].count if peer_id in self._failures else 0
        self._rest(peer_id, min(_RETRY_MOST_S, _RETRY_FIRST_S * 2.0 ** min(count, 16)), now)
        self._failures[peer_id].count = count + 1
        yield Disappoint(peer_id, error)

    def _rest(self, peer_id: PeerId, pause_s: float, now: float) -> None:
        """Leave the peer alone for so long."""
        failures = self._failures.pop(peer_id, None) or _Failures()
        failures.again_at_s = max(failures.again_at_s, now + pause_s)
        self._failures[peer_id] = failures
        while len(self._failures) > _REMEMBERED_MOST:
            del self._failures[next(iter(self._failures))]  # the oldest


def _cannot(peer_id: PeerId, why: str) -> Unreachable:
    return Unreachable(f"no hole is punched to {peer_id}: {why}")


def _away(peer_id: PeerId) -> Unreachable:
    return _cannot(peer_id, "the coordinator, which says when both dial, is away; open links go on")
