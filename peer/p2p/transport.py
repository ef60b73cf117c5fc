"""Chunk links over libp2p, for pairs of peers that cannot dial each other directly."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from peer.config import LinkConfig
from peer.links.addresses import P2pAddress, parse, parse_relay
from peer.links.stream_link import StreamLink
from peer.links.traffic import LinkTraffic
from peer.links.transport import Admission, Link, LinkHandler
from peer.p2p.circuits.book import CircuitCaps
from peer.p2p.circuits.dht_key import Found, run_key
from peer.p2p.port_hold import PortHold
from peer.p2p.relay_caps import RelayCaps
from peer.p2p.stream import P2pStream
from peer.p2p.streams.limits import HostLimits
from peer.p2p.supervision import RestartBackoff
from rollcast.runtime.background import Background
from rollcast.runtime.errors import MissingExtra, NotAllowed, RollcastError, Unreachable, WrongKey
from rollcast.runtime.install import install_command
from rollcast.wire.identity.certificates import Caller, caller_issued_by
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.links.handshake import LinkLimits, greet
from rollcast.wire.links.tcp import SocketOptions
from rollcast.wire.proto import rollcast_pb2 as pb

if TYPE_CHECKING:
    from peer.p2p.host import OpenLink
    from peer.p2p.thread import HostThread

log = structlog.get_logger()
RELAYS_MOST = 8
"""Relays considered, of those that are named; the rest is ignored."""


class P2pTransport:
    """See peer.links.transport.ChunkTransport. Make it inside a running event loop.

    Args:
        identity: the key that libp2p proves in its handshake; the certificate of the run must name it.
        host, port: address to listen on; port 0 lets the system choose.
        traffic: the traffic of all links of the process.
        caps: limits on what is passed on for others; None: nothing is passed on.
        dht: whether to search for members of the run in a table that they keep (peer.p2p.circuits.dht).
    """

    def __init__(
        self,
        identity: Identity,
        credentials: TlsCredentials,
        run_id: RunId,
        admit: Admission,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: LinkLimits | None = None,
        host_limits: HostLimits | None = None,
        traffic: LinkTraffic | None = None,
        caps: CircuitCaps | None = None,
        dht: bool = False,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._identity = identity
        self._credentials = credentials
        self._run_id = run_id
        self._admit = admit
        self._limits = limits or LinkLimits()
        self._host_limits = host_limits or HostLimits(
            opening_timeout_s=self._limits.handshake_timeout_s + self._limits.hello_timeout_s,
            silence_timeout_s=self._limits.silence_timeout_s,
        )
        self._options = SocketOptions(silence_timeout_s=self._limits.silence_timeout_s)
        self._traffic = traffic or LinkTraffic(LinkConfig())
        self._address = (host, port)
        self._thread_class = host_thread_class()
        self._caps = caps
        self._dht = dht
        self._sought: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._passing = RelayCaps(self._traffic, caps) if caps is not None else None
        self._jitter = jitter
        self._supervision = RestartBackoff()
        self._loop = asyncio.get_running_loop()
        self._on_link: LinkHandler | None = None
        self._hold: PortHold | None = None
        self._thread: HostThread | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._streams: set[P2pStream] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._background = Background("p2p task failed")
        self._beginning = asyncio.Lock()
        self._begun = False
        self._closing = False
        self._trouble = ""
        self._expected: frozenset[PeerId] = frozenset()
        self._banned: frozenset[PeerId] = frozenset()
        self._relays: tuple[P2pAddress, ...] = ()
        self._circuits: tuple[str, ...] = ()
        self._may_relay = True
        self.on_circuits: Callable[[tuple[str, ...]], None] | None = None
        """Called with this peer's addresses through relays, whenever they change."""
        self.on_found: Callable[[PeerId, tuple[str, ...]], None] | None = None
        """Called with a peer that the DHT names and its addresses, which are hints."""

    @property
    def running(self) -> bool:
        """Whether links can be opened now."""
        return self._thread is not None

    @property
    def state(self) -> str:
        """Text for screens: "running", with the bytes relayed for others, or the reason why libp2p does not run."""
        if not self.running:
            return self._trouble or "not begun"
        passed_bytes = self._passing.passed_bytes if self._passing is not None else 0
        return f"running, {passed_bytes / 1e6:.0f} MB passed on for others" if passed_bytes else "running"

    @property
    def relays_for_others(self) -> bool:
        """Whether the configuration lets other peers hold reservations here."""
        return self._caps is not None

    def expect(self, peer_ids: Iterable[PeerId]) -> None:
        """Replace the peers that the coordinator names as members of the run."""
        self._expected = frozenset(peer_ids)
        if self._thread is not None:
            self._thread.expect(self._expected)

    def keep_out(self, banned: frozenset[PeerId]) -> None:
        """Replace the banned peers, which are no members whatever certificate they show."""
        self._banned = banned
        if self._thread is not None:
            self._thread.keep_out(banned)

    def want_relays(self, addresses: Iterable[str]) -> None:
        """Reserve at some of these relays, the preferred first; ``on_circuits`` is called with the addresses."""
        found = (parse_relay(address) for address in islice(addresses, RELAYS_MOST))
        self._relays = tuple(relay for relay in found if relay is not None and relay.peer_id != self._identity.peer_id)
        if self._thread is not None:
            self._thread.want_relays(self._relays)

    def seek(self, seeds: Iterable[str], own: Iterable[str]) -> None:
        """Search the DHT for members, starting from these hosts, and publish this peer's own addresses in it."""
        self._sought = tuple(seeds), tuple(own)
        if self._thread is not None:
            self._thread.seek(*self._sought)

    def found(self, found: Found) -> None:
        """See ThreadOwner."""
        for peer_id, addresses in found:
            if self.on_found is not None:
                self.on_found(peer_id, addresses)

    def allow_relaying(self, *, allowed: bool) -> None:
        """Whether the owner's limits allow relaying for others now."""
        self._may_relay = allowed
        if self._thread is not None:
            self._thread.allow_relaying(allowed=allowed)

    async def start(self, on_link: LinkHandler) -> str:
        """See ChunkTransport; returns an address like /ip4/192.0.2.1/tcp/4001.

        Raises:
            PortInUse: another process listens there.
            Unreachable: libp2p does not run.
            WaitTimedOut: libp2p did not begin to listen in time.
        """
        self._on_link = on_link
        host, port = self._address
        self._hold = PortHold(host, port)
        try:
            async with self._beginning:
                await self._run_thread()
        except BaseException:
            self._hold.release()
            raise
        return str(self._listen)

    async def dial(self, peer_id: PeerId, address: str) -> Link:
        where = parse(address, peer_id)
        async with self._beginning:
            if not self._begun:  # a peer that only dials needs no port
                await self._run_thread()
        if self._thread is None:
            raise Unreachable(f"cannot reach {peer_id} at {address}", cause="libp2p does not run at the moment")
        opened = await self._thread.dial(peer_id, where, self._limits.dial_timeout_s)
        stream = self._stream(opened)
        caller = await self._greeted(stream, peer_id, dialled=True)
        return self._link(stream, opened, caller, dialled=True)

    def renew(self, credentials: TlsCredentials) -> None:
        self._credentials = credentials

    async def close(self) -> None:
        self._closing = True
        if self._restart is not None:
            self._restart.cancel()
        for stream in list(self._streams):
            stream.end("the link was closed here")
        try:
            async with asyncio.timeout(2.0):
                await self._empty.wait()
        except TimeoutError:
            pass  # the end of the thread cuts the rest
        thread, self._thread = self._thread, None
        if thread is not None:
            await thread.stop()
        await self._background.end()
        if self._hold is not None:
            self._hold.release()

    # ------------------------------------------------------------- the thread

    @property
    def _listen(self) -> P2pAddress | None:
        return None if self._hold is None else P2pAddress.of(self._address[0], self._hold.port)

    async def _run_thread(self) -> None:
        key = run_key(self._run_id, self._credentials.ca_pem) if self._dht else None
        thread = self._thread_class(self._identity, self._host_limits, self._listen, self, self._caps, key)
        await thread.start()
        self._thread, self._begun = thread, True
        self._trouble = ""
        thread.expect(self._expected)
        thread.keep_out(self._banned)
        thread.want_relays(self._relays)
        thread.seek(*self._sought)
        thread.allow_relaying(allowed=self._may_relay)
        self._supervision.started(self._loop.time())

    def thread_ended(self, error: BaseException | None) -> None:
        if self._closing:
            return
        self._thread = None
        self.reserved(())
        for stream in list(self._streams):
            stream.give_up("the libp2p thread ended")  # if trio itself failed, nothing else ends it
        self._start_again_later(repr(error))

    def _start_again_later(self, why: str) -> None:
        delay_s = self._supervision.died(self._jitter(), self._loop.time())
        self._trouble = f"ended: {why[:200]}; restart after {delay_s:.0f} s"
        log.error("libp2p ended; direct links continue", reason=why, again_in_s=round(delay_s, 1))
        self._restart = self._loop.call_later(delay_s, lambda: self._background.spawn(self._start_again()))

    async def _start_again(self) -> None:
        try:
            await self._run_thread()
        except RollcastError as error:
            self._start_again_later(error.what)
            return
        log.info("libp2p runs again")

    # ------------------------------------------------------------- links

    def link_opened(self, link: OpenLink) -> None:
        """See ThreadOwner."""
        self._background.spawn(self._answer(link))

    async def _answer(self, opened: OpenLink) -> None:
        stream = self._stream(opened)
        try:
            caller = await self._greeted(stream, opened.peer_id, dialled=False)
        except RollcastError as error:
            log.warning("chunk link refused", peer=opened.peer_id, code=error.code, reason=error.what)
            if isinstance(error, WrongKey) and self._thread is not None:
                self._thread.refuse(opened.peer_id)
            return
        assert self._on_link is not None
        if self._thread is not None:
            self._thread.member(opened.peer_id)
        link = self._link(stream, opened, caller, dialled=False)
        link.start(self._on_link(link))

    def _stream(self, opened: OpenLink) -> P2pStream:
        def lost() -> None:
            self._streams.discard(stream)
            if not self._streams:
                self._empty.set()

        stream = P2pStream(
            opened.buffers,
            opened.remote_address,
            opened.socket,
            self._options,
            write_timeout_s=self._limits.write_timeout_s,
            on_lost=lost,
        )
        self._streams.add(stream)
        self._empty.clear()
        return stream

    async def _greeted(self, stream: P2pStream, peer_id: PeerId, *, dialled: bool) -> Caller:
        """Return the other end's identity once both have greeted: noise proved the PeerId, the certificate the rest."""
        callers: list[Caller] = []

        def check(hello: pb.LinkHello) -> None:
            caller = self._caller(peer_id, hello.certificate_der)
            problem = "" if dialled else self._admit(caller)
            if problem:
                raise NotAllowed(problem)
            callers.append(caller)

        await greet(
            stream,
            peer_id,
            self._run_id,
            self._limits.hello_timeout_s,
            dialled=dialled,
            certificate_der=self._credentials.certificate_der,
            check=check,
        )
        return callers[0]

    def _caller(self, peer_id: PeerId, certificate_der: bytes) -> Caller:
        caller = caller_issued_by(self._credentials.ca_pem, certificate_der, datetime.now(UTC))
        if caller.peer_id != peer_id or caller.run_id != self._run_id:
            raise WrongKey(f"{peer_id} shows the certificate of {caller.uri}")
        return caller

    def _link(self, stream: P2pStream, opened: OpenLink, caller: Caller, *, dialled: bool) -> StreamLink:
        transport = "relayed" if opened.relayed else "p2p"
        return StreamLink(stream, caller, self._traffic.of(stream.remote_address), dialled=dialled, transport=transport)

    # ------------------------------------------------------------- circuits

    @property
    def certificate_der(self) -> bytes:
        """See ThreadOwner."""
        return self._credentials.certificate_der

    def is_certificate_of(self, peer_id: PeerId, certificate_der: bytes) -> bool:
        """See ThreadOwner."""
        try:
            self._caller(peer_id, certificate_der)
        except RollcastError as error:
            log.warning("a libp2p peer is no member of the run", peer=peer_id, code=error.code, reason=error.what)
            return False
        return True

    def reserved(self, circuits: tuple[str, ...]) -> None:
        """See ThreadOwner."""
        if circuits != self._circuits:
            self._circuits = circuits
            log.info("reachable through relays", circuits=circuits)
            if self.on_circuits is not None:
                self.on_circuits(circuits)

    def pass_on(self, grant: Callable[[int], None]) -> None:
        """See ThreadOwner."""
        if self._passing is not None:
            wait_s = self._passing.next_portion(self._loop.time())
            self._loop.call_later(wait_s, self._grant, grant)

    def _grant(self, grant: Callable[[int], None]) -> None:
        assert self._passing is not None
        grant(self._passing.passed(self._loop.time()))


def host_thread_class() -> Callable[..., HostThread]:
    """Return HostThread, imported only here because libp2p is missing where the extra is not installed.

    Raises:
        MissingExtra: libp2p is not installed.
    """
    try:
        from peer.p2p.thread import HostThread
    except ImportError as error:
        raise MissingExtra(
            "libp2p is not installed", cause=str(error), fix=f"{install_command('p2p')} (needs gcc and libgmp-dev)"
        ) from None
    return HostThread
