"""Which connections of a libp2p host stay: looked at once their handshake is done, and every few seconds (trio).

Who may keep a connection to our libp2p host: members of the run. Strangers get seconds to show that they are one.

libp2p has no list of peers that it takes connections from (trap 10 of its 0.8): this is looked at after each handshake,
which has proved the PeerId. Decisions only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import trio
from libp2p.abc import INotifee
from libp2p.rcmgr import Direction

from peer.p2p.circuits.wire import CERTIFICATE, answer_certificate, read_certificate
from peer.p2p.streams.lanes import close_quietly
from peer.p2p.streams.limits import HostLimits
from peer.p2p.streams.yamux import MEMBER_BYTES_MOST
from rollcast.wire.ids import PeerId

_REMEMBERED_MOST = 4096
_REFUSED_FOR_S = 60.0
Verdict = Literal["member", "stranger", "refused"]


@dataclass(slots=True)
class ConnectionPolicy:
    """Of one host.

    Args:
        strangers_most: on probation at a time.
    """

    strangers_most: int = 16
    _expected: frozenset[PeerId] = frozenset()
    _banned: frozenset[PeerId] = frozenset()
    _shown: OrderedDict[PeerId, None] = field(default_factory=OrderedDict)
    _refused_until_s: OrderedDict[PeerId, float] = field(default_factory=OrderedDict)

    def expect(self, peer_ids: Iterable[PeerId]) -> None:
        """The coordinator, or a record that proved itself, names these as members; in place of those named before."""
        self._expected = frozenset(peer_ids)

    def keep_out(self, banned: frozenset[PeerId]) -> None:
        """These are members no more, whatever they show; in place of those before."""
        self._banned = banned

    def showed(self, peer_id: PeerId) -> None:
        """It has shown a certificate of the run, or we dialled it as one that has."""
        self._refused_until_s.pop(peer_id, None)
        self._shown[peer_id] = None
        self._shown.move_to_end(peer_id)
        while len(self._shown) > _REMEMBERED_MOST:
            self._shown.popitem(last=False)

    def refuse(self, peer_id: PeerId, now: float) -> None:
        """It has shown something else, or may not have what it asked for: it need not come back for a while."""
        self._shown.pop(peer_id, None)
        self._refused_until_s[peer_id] = now + _REFUSED_FOR_S
        self._refused_until_s.move_to_end(peer_id)
        while len(self._refused_until_s) > _REMEMBERED_MOST:
            self._refused_until_s.popitem(last=False)

    def is_refused(self, peer_id: PeerId, now: float) -> bool:
        """Whether it was refused and has to wait still."""
        return peer_id in self._banned or now < self._refused_until_s.get(peer_id, now)

    def is_member(self, peer_id: PeerId) -> bool:
        """Whether it is one of the run, as far as is known."""
        return peer_id not in self._banned and (peer_id in self._shown or peer_id in self._expected)

    def judge(self, peer_id: PeerId, strangers: int, now: float) -> Verdict:
        """What to do about a connection of this peer.

        Args:
            strangers: other connections that are on probation now.
        """
        if self.is_member(peer_id):
            return "member"
        if self.is_refused(peer_id, now) or strangers >= self.strangers_most:
            return "refused"
        return "stranger"


_MEMBER = "rollcast-member"
Judge = Callable[[PeerId, bytes, Callable[[bool], None]], None]


class ConnectionGate(INotifee):  # type: ignore[misc]
    """Of one host; see peer.p2p.connection_gate for what is decided.

    Args:
        host: libp2p host that runs.
        judge: see peer.p2p.host.HostUser.
        wake: makes a function that calls the one given in this thread, from any thread.
    """

    def __init__(
        self,
        host: Any,
        limits: HostLimits,
        judge: Judge,
        nursery: trio.Nursery,
        wake: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        self.policy = ConnectionPolicy(limits.strangers_most)
        self._host = host
        self._limits = limits
        self._judge = judge
        self._nursery = nursery
        self._wake = wake
        self._showing: set[PeerId] = set()  # certificates, at this moment
        host.set_stream_handler(CERTIFICATE, self._shown)
        host.get_network().register_notifee(self)

    def member(self, peer_id: PeerId) -> None:
        """It has shown a certificate of the run."""
        self.policy.showed(peer_id)
        for connection in self._connections():
            if _peer_of(connection) == peer_id:
                self._keep(connection)

    def refuse(self, peer_id: PeerId) -> None:
        """It has shown something else: what it opens from now on is closed at once, what it has when its time is up."""
        self.policy.refuse(peer_id, trio.current_time())

    async def serve(self, in_use: Callable[[Any], bool]) -> None:
        """Close what strangers and nobody need, for ever."""
        first_seen_s: dict[int, float] = {}
        while True:
            await trio.sleep(self._limits.strangers_timeout_s / 4)
            first_seen_s = await self._sweep(in_use, first_seen_s)

    async def _sweep(self, in_use: Callable[[Any], bool], first_seen_s: dict[int, float]) -> dict[int, float]:
        """
        Args:
            first_seen_s: by connection, when it was seen without a use first.
        """
        now = trio.current_time()
        still: dict[int, float] = {}
        for connection in self._connections():
            if in_use(connection) and not self._is_stranger(connection):
                continue
            since_s = first_seen_s.get(id(connection), now)
            if now - since_s >= self._limits.strangers_timeout_s:
                await close_quietly(connection.close)
            else:
                still[id(connection)] = since_s
        return still

    async def _shown(self, stream: Any) -> None:
        """Somebody shows a certificate. One at a time is looked at, and none of whoever was refused: each costs the
        event loop a signature, and a bad one a line of the log."""
        peer_id = _peer_of(stream.swarm_conn)
        if peer_id in self._showing or self.policy.is_refused(peer_id, trio.current_time()):
            await close_quietly(stream.reset)
            return
        self._showing.add(peer_id)
        try:
            with trio.fail_after(self._limits.opening_timeout_s):
                accepted = await self._judged(peer_id, await read_certificate(stream))
                if accepted:
                    self.member(peer_id)
                await answer_certificate(stream, accepted=accepted)
            if not accepted:
                self.refuse(peer_id)
        except Exception:  # libp2p raises many kinds; a stranger's stream must not end the host, and is closed
            return
        finally:
            self._showing.discard(peer_id)
            await close_quietly(stream.close)

    async def _judged(self, peer_id: PeerId, certificate_der: bytes) -> bool:
        answers: list[bool] = []
        answered = trio.Event()
        wake = self._wake(answered.set)

        def answer(accepted: bool) -> None:
            answers.append(accepted)
            wake()

        self._judge(peer_id, certificate_der, answer)
        await answered.wait()
        return answers[0]

    def _is_stranger(self, connection: Any) -> bool:
        return connection.direction is not Direction.OUTBOUND and not self.policy.is_member(_peer_of(connection))

    def _keep(self, connection: Any) -> None:
        """It may hold as much as links need, and is not closed as one too many."""
        connection.muxed_conn.held_bytes_most = MEMBER_BYTES_MOST
        self._host.get_network().protect(connection.muxed_conn.peer_id, _MEMBER)

    def _connections(self) -> list[Any]:
        return list(self._host.get_network().get_connections())

    # ------------------------------------------------------------- INotifee

    async def connected(self, network: Any, conn: Any) -> None:
        """A handshake is done: the PeerId is proved."""
        if conn.direction is Direction.OUTBOUND:
            self._keep(conn)
            return
        strangers = sum(one is not conn and self._is_stranger(one) for one in self._connections())
        verdict = self.policy.judge(_peer_of(conn), strangers, trio.current_time())
        if verdict == "refused":
            self._nursery.start_soon(close_quietly, conn.close)
        elif verdict == "member":
            self._keep(conn)

    async def disconnected(self, network: Any, conn: Any) -> None:
        """What is remembered for its sake goes with the last connection of a peer."""
        peer_id = conn.muxed_conn.peer_id
        if not network.connections.get(peer_id):
            network.unprotect(peer_id, _MEMBER)

    async def opened_stream(self, network: Any, stream: Any) -> None:
        """Nothing to do."""

    async def closed_stream(self, network: Any, stream: Any) -> None:
        """Nothing to do."""

    async def listen(self, network: Any, multiaddr: Any) -> None:
        """Nothing to do."""

    async def listen_close(self, network: Any, multiaddr: Any) -> None:
        """Nothing to do."""


def _peer_of(connection: Any) -> PeerId:
    return PeerId(str(connection.muxed_conn.peer_id))
