"""Apply the connection policy to this libp2p host: keep members and close other connections (trio).

Members of the run may; a stranger gets a few seconds to prove its membership by showing a certificate of the run CA.
libp2p 0.8 has no list of peers to accept connections from (trap 10), so ConnectionGate checks each connection once its
handshake has proved the PeerId, and sweeps all connections every few seconds. ConnectionPolicy decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from libp2p.abc import INotifee
from libp2p.rcmgr import Direction

from peer.p2p.circuits.wire import CERTIFICATE, answer_certificate, read_certificate
from peer.p2p.connection_policy import ConnectionPolicy
from peer.p2p.streams.lanes import close_quietly
from peer.p2p.streams.limits import HostLimits
from peer.p2p.streams.yamux import MEMBER_BYTES_MOST
from rollcast.wire.ids import PeerId

_MEMBER = "rollcast-member"
Judge = Callable[[PeerId, bytes, Callable[[bool], None]], None]


class ConnectionGate(INotifee):  # type: ignore[misc]
    """Apply the ConnectionPolicy to the connections of one running libp2p host.

    Args:
        host: the libp2p host.
        judge: verifies a certificate on the event loop's thread (peer.p2p.host.HostUser).
        wake: wraps a function so that a call from any thread runs it on this one.
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
        self._showing: set[PeerId] = set()  # peers whose certificate is being checked
        host.set_stream_handler(CERTIFICATE, self._shown)
        host.get_network().register_notifee(self)

    def member(self, peer_id: PeerId) -> None:
        """Accept a peer that has shown a certificate of the run, and protect its connections."""
        self.policy.showed(peer_id)
        for connection in self._connections():
            if _peer_of(connection) == peer_id:
                self._keep(connection)

    def refuse(self, peer_id: PeerId) -> None:
        """Refuse a peer: new connections are closed at once, open ones when their probation ends."""
        self.policy.refuse(peer_id, trio.current_time())

    async def serve(self, in_use: Callable[[Any], bool]) -> None:
        """Close connections of strangers, and connections without a use, until cancelled."""
        first_seen_s: dict[int, float] = {}
        while True:
            await trio.sleep(self._limits.strangers_timeout_s / 4)
            first_seen_s = await self._sweep(in_use, first_seen_s)

    async def _sweep(self, in_use: Callable[[Any], bool], first_seen_s: dict[int, float]) -> dict[int, float]:
        """Close connections whose probation has ended. Return when each remaining one was first seen without a use.

        Args:
            first_seen_s: the result of the previous sweep, by the connection's id.
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
        """Check the certificate that a peer shows.

        One certificate per peer is checked at a time, and none of a refused peer: each costs the event loop the
        verification of a signature, and an invalid one a line in the log.
        """
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
        except Exception:  # libp2p raises many kinds of errors; a stranger's stream is closed and must not end the host
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
        """Give a member's connection the buffers that links need, and exempt it from the host's connection limit."""
        connection.muxed_conn.held_bytes_most = MEMBER_BYTES_MOST
        self._host.get_network().protect(connection.muxed_conn.peer_id, _MEMBER)

    def _connections(self) -> list[Any]:
        return list(self._host.get_network().get_connections())

    # ------------------------------------------------------------- INotifee

    async def connected(self, network: Any, conn: Any) -> None:
        """Judge a connection whose handshake is done, which proves the PeerId."""
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
        """Drop the protection of a peer with its last connection."""
        peer_id = conn.muxed_conn.peer_id
        if not network.connections.get(peer_id):
            network.unprotect(peer_id, _MEMBER)

    async def opened_stream(self, network: Any, stream: Any) -> None:
        """Ignore: only connections are judged."""

    async def closed_stream(self, network: Any, stream: Any) -> None:
        """Ignore: only connections are judged."""

    async def listen(self, network: Any, multiaddr: Any) -> None:
        """Ignore: only connections are judged."""

    async def listen_close(self, network: Any, multiaddr: Any) -> None:
        """Ignore: only connections are judged."""


def _peer_of(connection: Any) -> PeerId:
    return PeerId(str(connection.muxed_conn.peer_id))
