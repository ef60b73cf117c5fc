"""What we tell the coordinator about how we can be reached: the newest of what each part found, once per change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peer.reachability.nat_kind import NatKind
from rollcast.wire.proto import rollcast_pb2 as pb

CIRCUITS_MOST = 2
"""Addresses through relays that are told; nobody needs more."""


class AdvertisedReachability:
    """A connectivity component (peer.connect.connectivity) that the others tell. Call it inside a running event loop.

    Args:
        send: into the session; what is sent while there is none is lost, so all is told anew after every welcome.
    """

    kinds: frozenset[str] = frozenset()

    def __init__(self, send: Callable[[pb.PeerMessage], None]) -> None:
        self._send = send
        self._now = pb.Reachability()
        self._connected = self._due = False

    def set_nat(self, kind: NatKind) -> None:
        """What stands between this machine and those who would dial it."""
        self._set(nat=kind)

    def set_punch_address(self, text: str) -> None:
        """ip:port under which the coordinator sees the port that holes are punched from; empty: none."""
        self._set(punch_address=text)

    def set_circuits(self, circuits: tuple[str, ...]) -> None:
        """Our addresses through relays that hold a reservation of ours."""
        self._set(circuits=circuits[:CIRCUITS_MOST])

    def set_relay_address(self, text: str) -> None:
        """Where our libp2p host takes reservations of others; empty: it takes none."""
        self._set(relay_address=text)

    def set_advertise(self, text: str) -> None:
        """What others dial, in place of what was said at the start; empty: that stays."""
        self._set(advertise=text)

    def set_local_address(self, text: str) -> None:
        """Private ip:port where links are listened for, told to peers of the same local network; empty: nowhere."""
        self._set(local_address=text)

    @property
    def now(self) -> pb.Reachability:
        """What is known at this moment; a copy."""
        copy = pb.Reachability()
        copy.CopyFrom(self._now)
        return copy

    async def run(self) -> None:
        """It has nothing to do by itself."""
        await asyncio.Event().wait()

    def opened(self, welcome: pb.Welcome) -> None:
        """See ConnectivityComponent."""
        self._connected = True
        self._soon()

    def lost(self) -> None:
        """See ConnectivityComponent."""
        self._connected = False

    def received(self, message: pb.CoordinatorMessage) -> None:
        """See ConnectivityComponent; nothing is for it."""

    def _set(self, **changed: str | tuple[str, ...]) -> None:
        before = self.now
        for name, value in changed.items():
            self._now.ClearField(name)
            self._now.MergeFrom(pb.Reachability(**{name: value}))  # type: ignore[arg-type]
        if self._now != before:
            self._soon()

    def _soon(self) -> None:
        """Several changes at one moment are one message."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._due = False
        if self._connected:
            self._send(pb.PeerMessage(reachability=self.now))
