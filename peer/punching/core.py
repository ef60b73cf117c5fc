"""Decide which hole-punching attempts to request, to start and to report, and how many run at once. Pure.

A hole through two routers takes dials from both ends at the same time (Ford, Srisuresh, Kegel 2005, "Peer-to-Peer
Communication Across Network Address Translators", section 4). The coordinator, with which both peers have a session,
sets the moment. So this peer's own attempt starts with a request to the coordinator, another peer's attempt with the
coordinator's order, and without a session there are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rollcast.runtime.errors import RollcastError, Unreachable, WaitTimedOut
from rollcast.wire.ids import PeerId

RUNNING_MOST = 8
"""Most attempts at a time; each holds two sockets and a TLS handshake."""
WAITING_MOST = 16
"""Most requests to the coordinator without an answer."""
ANSWER_S = 2.0
"""Seconds for the coordinator to answer a request."""
DEADLINE_MOST_S = 10.0
"""Longest attempt in seconds, whatever the coordinator orders."""
_RETRY_FIRST_S = 5.0
_RETRY_MOST_S = 600.0
_REFUSED_S = 1.0
_REMEMBERED_MOST = 4096


@dataclass(frozen=True, slots=True)
class Order:
    """The coordinator's order that both ends start now (pb.Punch).

    Args:
        address: ip:port under which the coordinator sees the other end over IPv4; empty: there is none, or it is not
            known because the router is symmetric, so that this end only listens.
        serves: whether this end is the server in the TLS handshake.
        asked: whether this end requested the attempt.
        deadline_s: length of the attempt in seconds.
        address_ipv6: [ip]:port under which the coordinator sees it over IPv6; empty: not both ends have IPv6.
    """

    punch_id: int
    peer_id: PeerId
    address: str
    serves: bool
    asked: bool
    deadline_s: float
    address_ipv6: str = ""


# ------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Wanted:
    """A caller in this process waits for a link to this peer."""

    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The caller no longer waits for a link to this peer."""

    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class Ordered:
    """The coordinator's order has arrived."""

    order: Order


@dataclass(frozen=True, slots=True)
class Refused:
    """The coordinator has refused a request."""

    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Opened:
    """An attempt has opened a link."""

    punch_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt has failed."""

    punch_id: int
    error: RollcastError


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session with the coordinator has opened."""


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The session with the coordinator has ended."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; due at ``next_deadline_s``."""


Event = Wanted | GaveUp | Ordered | Refused | Opened | Failed | SessionOpened | SessionLost | Tick

# ------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Ask:
    """Request an attempt from the coordinator."""

    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class Begin:
    """Dial and listen until the order's deadline; Opened or Failed follows as an event."""

    order: Order


@dataclass(frozen=True, slots=True)
class Report:
    """Report to the coordinator how an attempt ended."""

    punch_id: int
    opened: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class FailWaiting:
    """Fail the callers that wait for a link to this peer, with this error."""

    peer_id: PeerId
    error: RollcastError


Action = Ask | Begin | Report | FailWaiting


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
    """The attempts of one process."""

    _connected: bool = False
    _waiting: dict[PeerId, float] = field(default_factory=dict)  # requested peer -> deadline of the answer
    _running: dict[int, _Running] = field(default_factory=dict)
    _failures: dict[PeerId, _Failures] = field(default_factory=dict)

    @property
    def running(self) -> int:
        """The number of attempts that are running."""
        return len(self._running)

    @property
    def next_deadline_s(self) -> float | None:
        """The time at which a Tick is due; None: no request is in flight."""
        return min(self._waiting.values(), default=None)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Return the actions that this event causes."""
        return list(self._handle(event, now))

    def _handle(self, event: Event, now: float) -> Iterator[Action]:
        match event:
            case Wanted(peer_id):
                yield from self._wanted(peer_id, now)
            case GaveUp(peer_id):
                self._waiting.pop(peer_id, None)
            case Ordered(order):
                yield from self._ordered(order, now)
            case Refused(peer_id, reason):
                self._waiting.pop(peer_id, None)
                self._rest(peer_id, _REFUSED_S, now)  # short, because the cause of a refusal may pass in a moment
                yield FailWaiting(peer_id, _cannot(peer_id, reason))
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
                    yield FailWaiting(peer_id, _away(peer_id))
            case Tick():
                for peer_id in [one for one, until_s in self._waiting.items() if now >= until_s]:
                    late = WaitTimedOut(f"waited {ANSWER_S:g} s for the coordinator's order to dial {peer_id}")
                    yield from self._record_failure(peer_id, late, now)

    def _wanted(self, peer_id: PeerId, now: float) -> Iterator[Action]:
        failures = self._failures.get(peer_id)
        if not self._connected:
            yield FailWaiting(peer_id, _away(peer_id))
        elif peer_id in self._waiting or any(one.order.peer_id == peer_id for one in self._running.values()):
            yield FailWaiting(peer_id, _cannot(peer_id, "an attempt is under way"))
        elif len(self._waiting) >= WAITING_MOST or len(self._running) >= RUNNING_MOST:
            yield FailWaiting(peer_id, _cannot(peer_id, "too many attempts with other peers are in progress"))
        elif failures is not None and now < failures.again_at_s:
            wait_s = failures.again_at_s - now
            yield FailWaiting(
                peer_id, _cannot(peer_id, f"after {failures.count} failures no further attempt for {wait_s:.1f} s")
            )
        else:
            self._waiting[peer_id] = now + ANSWER_S
            yield Ask(peer_id)

    def _ordered(self, order: Order, now: float) -> Iterator[Action]:
        """Start the ordered attempt, or report at once that this end does not take part: the coordinator waits."""
        waited = self._waiting.pop(order.peer_id, None) is not None
        if order.asked and not waited:
            yield Report(order.punch_id, False, 0.0)  # the caller that requested it no longer waits
        elif order.punch_id in self._running or len(self._running) >= RUNNING_MOST:
            if waited:
                yield FailWaiting(
                    order.peer_id, _cannot(order.peer_id, "too many attempts with other peers are in progress")
                )
            yield Report(order.punch_id, False, 0.0)
        else:
            if waited and not order.asked:  # both ends requested an attempt: the other one opens the link
                yield FailWaiting(order.peer_id, _cannot(order.peer_id, "that peer dials this one at the moment"))
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
            yield from self._record_failure(peer_id, error, now)

    def _record_failure(self, peer_id: PeerId, error: RollcastError, now: float) -> Iterator[Action]:
        """Record a failure. Each one doubles the pause: a router does not become another kind by retries."""
        self._waiting.pop(peer_id, None)
        count = self._failures[peer_id].count if peer_id in self._failures else 0
        self._rest(peer_id, min(_RETRY_MOST_S, _RETRY_FIRST_S * 2.0 ** min(count, 16)), now)
        self._failures[peer_id].count = count + 1
        yield FailWaiting(peer_id, error)

    def _rest(self, peer_id: PeerId, pause_s: float, now: float) -> None:
        """Request no attempt with this peer for pause_s seconds."""
        failures = self._failures.pop(peer_id, None) or _Failures()
        failures.again_at_s = max(failures.again_at_s, now + pause_s)
        self._failures[peer_id] = failures
        while len(self._failures) > _REMEMBERED_MOST:
            del self._failures[next(iter(self._failures))]  # the oldest


def _cannot(peer_id: PeerId, why: str) -> Unreachable:
    return Unreachable(f"cannot punch a hole to {peer_id}: {why}")


def _away(peer_id: PeerId) -> Unreachable:
    return _cannot(peer_id, "the coordinator, which sets the moment of both dials, is unreachable; open links continue")
