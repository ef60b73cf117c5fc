"""Find members of a run in a Kademlia table that they keep (trio), for peers that know a few others and no coordinator.

Each member publishes its addresses under the key of the run, and looks up those of the others. An address found there
is a hint: a link is opened by handshake and certificate as everywhere. py-libp2p 0.8 makes the lookups. Three of its
habits are prevented here: it serves strangers, stores whatever any peer sends, and answers a lookup with its own entry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import trio
from libp2p.kad_dht.common import PROTOCOL_ID
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr

from peer.links.addresses import P2pAddress, is_p2p_address, parse_relay
from peer.p2p.circuits.dht_key import Found
from peer.p2p.circuits.wire import open_stream
from peer.p2p.streams.lanes import close_quietly
from rollcast.runtime.errors import Unreachable
from rollcast.wire.ids import PeerId

ROUND_S = 300.0
"""Seconds between two rounds of lookup and announcement; rounds come sooner while no other member is known."""
FIRST_ROUND_S = 5.0
_ROUND_TIMEOUT_S = 60.0
_SERVED_S = 10.0  # limit for serving one stream of another member
_FOUND_MOST = 64
_ADDRESSES_MOST = 4
_KNOWN_MOST = 1024


_Connects = Callable[[P2pAddress], Awaitable[Any]]


class Dht:
    """The table of members as one libp2p host keeps it.

    Args:
        host: a running libp2p host.
        key: the run's key in the table, see run_key.
        connection_to: returns an open connection to the host at this address, on which that host has accepted our
            certificate of the run.
        is_member: returns whether a peer has shown a certificate of the run.
        found: called with the members that can be reached and their addresses.
    """

    def __init__(
        self,
        host: Any,
        key: bytes,
        *,
        connection_to: _Connects,
        is_member: Callable[[PeerId], bool],
        found: Callable[[Found], None],
    ) -> None:
        self._key = key
        self._is_member = is_member
        self._found = found
        self._host = _MembersHost(host, connection_to, self._serve)
        self._kad = KadDHT(self._host, DHTMode.SERVER, max_peers_per_subnet=0)
        self._seeds: tuple[P2pAddress, ...] = ()
        self._reported: frozenset[tuple[PeerId, tuple[str, ...]]] = frozenset()
        self._woken = trio.Event()

    def seek(self, seeds: Iterable[str], own: Iterable[str]) -> None:
        """Start lookups from ``seeds``, and announce this peer's own addresses.

        Args:
            seeds: addresses of libp2p hosts, each with its /p2p/ID; others are ignored.
            own: addresses of this peer; those that are not libp2p's are ignored.
        """
        before = self._seeds, self._host.own
        self._seeds = tuple(seed for one in seeds if (seed := parse_relay(one)) is not None)
        self._host.own = tuple(one for one in own if is_p2p_address(one))[:_ADDRESSES_MOST]
        if (self._seeds, self._host.own) != before:
            self._woken.set()

    async def run(self) -> None:
        """Make lookups and announcements until cancelled."""
        wait_s = FIRST_ROUND_S
        while True:
            self._woken = trio.Event()
            if self._seeds:
                # libp2p raises many kinds, and a lookup that fails must not end the host.
                with trio.move_on_after(_ROUND_TIMEOUT_S), contextlib.suppress(Exception):
                    await self.round()
                wait_s = ROUND_S if self._reported else min(ROUND_S, 2.0 * wait_s)
            with trio.move_on_after(wait_s):
                await self._woken.wait()
                await trio.sleep(FIRST_ROUND_S)  # what changes once often changes again at once

    async def round(self) -> None:
        """Make one lookup, and announce this peer's addresses to the members closest to the key."""
        for seed in self._seeds:
            peer_id = ID.from_string(seed.peer_id)
            self._host.get_peerstore().add_addrs(peer_id, [Multiaddr(str(_bare(seed)))], int(2 * ROUND_S))
            await self._kad.routing_table.add_peer(peer_id, skip_server_mode_check=True)
        store = self._kad.provider_store
        held = store.providers.pop(self._key, {})  # otherwise libp2p answers from these and asks no peer
        try:
            providers = await store.find_providers(self._key, _FOUND_MOST)
        finally:
            store.providers[self._key] = {**held, **store.providers.get(self._key, {})}
        self._report_found([*providers, *store.get_providers(self._key)])
        if self._host.own:
            await store.provide(self._key)
        self._prune()

    def _report_found(self, providers: Iterable[PeerInfo]) -> None:
        found = _readable(providers, str(self._host.get_id()))
        if found:
            self._reported = frozenset(found)
            self._found(found)

    async def _serve(self, handler: Callable[[Any], Any], stream: Any) -> None:
        """Serve a stream that another host opened, if that host is a member, for at most _SERVED_S."""
        try:
            if self._is_member(PeerId(str(stream.muxed_conn.peer_id))):
                with trio.move_on_after(_SERVED_S):
                    await handler(stream)
                self._prune()
                stored = self._kad.provider_store.get_providers(self._key)
                if not self._reported.issuperset(_readable(stored, str(self._host.get_id()))):
                    self._report_found(stored)
        except Exception:  # libp2p raises many kinds; another's stream must not end the host, and is closed
            return
        finally:
            await close_quietly(stream.reset)

    def _prune(self) -> None:
        """Discard entries under other keys, and all but the newest under the run's key.

        libp2p itself bounds only the number of peers that it knows.
        """
        store = self._kad.provider_store
        store.cleanup_expired()
        kept = store.providers.get(self._key, {})
        store.providers = {self._key: dict(list(kept.items())[-_KNOWN_MOST:])}
        self._kad.value_store.store.clear()


class _MembersHost:
    """A libp2p host as the table may use it: it shows our certificate when it dials, and serves members only.

    Args:
        connection_to: see Dht.
        serve: called with the table's handler and the stream that another host opened.
    """

    def __init__(self, host: Any, connection_to: _Connects, serve: Callable[..., Awaitable[None]]) -> None:
        self._host = host
        self._connection_to = connection_to
        self._serve = serve
        self.own: tuple[str, ...] = ()
        """Addresses at which this peer can be reached."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def get_addrs(self) -> list[Multiaddr]:
        """Return the addresses that others can dial, which the host itself does not know."""
        return [Multiaddr(one) for one in self.own]

    def set_stream_handler(self, protocol: str, handler: Callable[[Any], Any]) -> None:
        """Register the table's handler behind ``serve``, which checks membership first."""

        async def checked(stream: Any) -> None:
            await self._serve(handler, stream)

        self._host.set_stream_handler(protocol, checked)

    async def new_stream(self, peer_id: ID, protocols: Sequence[str]) -> Any:
        """Return a stream of the table's protocol, on a connection on which our certificate was accepted.

        Raises:
            Unreachable: another protocol is requested, or the peer has no address that can be dialled. libp2p raises
                many other exceptions.
        """
        if list(protocols) != [PROTOCOL_ID]:
            raise Unreachable("the table of members speaks one protocol")
        for address in self._host.get_peerstore().addrs(peer_id)[:_ADDRESSES_MOST]:
            found = parse_relay(f"{str(address).partition('/p2p/')[0]}/p2p/{peer_id}")
            if found is not None and "/p2p-circuit" not in str(address):
                return await open_stream(await self._connection_to(found), PROTOCOL_ID)
        raise Unreachable(f"{peer_id} has no address that we can dial")


def _bare(address: P2pAddress) -> P2pAddress:
    return P2pAddress(address.kind, address.host, address.port)


def _readable(providers: Iterable[PeerInfo], own_id: str) -> Found:
    """Return the peers found and their addresses as text, without addresses that are too long or of another kind."""
    found: dict[PeerId, tuple[str, ...]] = {}
    for info in providers:
        peer_id = PeerId(str(info.peer_id))
        addresses = [text for address in info.addrs[:_ADDRESSES_MOST] if is_p2p_address(text := str(address))]
        if peer_id != own_id and addresses:
            found[peer_id] = tuple(dict.fromkeys(text for text in addresses if len(text) <= 512))
    return tuple(list(found.items())[:_FOUND_MOST])
