"""Report to the coordinator how this peer can be reached: the newest findings of all components, once per change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peer.reachability.nat_kind import NatKind
from rollcast.wire.proto import rollcast_pb2 as pb

CIRCUITS_MOST = 2
"""Most addresses through relays that are reported."""


class AdvertisedReachability:
    """The reported findings, a connectivity component (peer.connect.connectivity) that the others write to.

    Call it inside a running event loop.

    Args:
        send: queues a message in the session. Messages are dropped while none is open, so everything is reported again
            after each welcome.
    """

    kinds: frozenset[str] = frozenset()

    def __init__(self, send: Callable[[pb.PeerMessage], None]) -> None:
        self._send = send
        self._now = pb.Reachability()
        self._connected = self._due = False

    def set_nat(self, kind: NatKind) -> None:
        """Set the kind of router or firewall between this machine and peers that dial it."""
        self._set(nat=kind)

    def set_punch_address(self, version: int, text: str) -> None:
        """Set where the coordinator sees the port for holes over IPv4 (4) or IPv6 (6); empty: it does not."""
        self._set(**{"punch_address_ipv6" if version == 6 else "punch_address": text})

    def set_circuits(self, circuits: tuple[str, ...]) -> None:
        """Set this peer's addresses through the relays that hold a reservation for it."""
        self._set(circuits=circuits[:CIRCUITS_MOST])

    def set_relay_address(self, text: str) -> None:
        """Set the address at which the libp2p host takes reservations of other peers; empty: it takes none."""
        self._set(relay_address=text)

    def set_advertise(self, text: str) -> None:
        """Set the address that others dial, in place of that advertised at startup; empty: the latter stays."""
        self._set(advertise=text)

    def set_local_address(self, text: str) -> None:
        """Set the private ip:port of links, which only peers of the same local network are told; empty: none."""
        self._set(local_address=text)

    @property
    def now(self) -> pb.Reachability:
        """Return a copy of the present findings."""
        copy = pb.Reachability()
        copy.CopyFrom(self._now)
        return copy

    async def run(self) -> None:
        """Wait until cancelled: the other components cause all reports."""
        await asyncio.Event().wait()

    def opened(self, welcome: pb.Welcome) -> None:
        """Report everything to the coordinator of the new session."""
        self._connected = True
        self._soon()

    def lost(self) -> None:
        """Stop reporting until the next session."""
        self._connected = False

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Ignore: it handles no message."""

    def _set(self, **changed: str | tuple[str, ...]) -> None:
        before = self.now
        for name, value in changed.items():
            self._now.ClearField(name)
            self._now.MergeFrom(pb.Reachability(**{name: value}))  # type: ignore[arg-type]
        if self._now != before:
            self._soon()

    def _soon(self) -> None:
        """Schedule a report; several changes within one turn of the event loop become one message."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._report)

    def _report(self) -> None:
        self._due = False
        if self._connected:
            self._send(pb.PeerMessage(reachability=self.now))
