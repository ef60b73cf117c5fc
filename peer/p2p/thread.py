"""Run libp2p, on trio, in a thread of its own; the calls into it and out of it are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import trio
from multiaddr import Multiaddr

from peer.links.addresses import CircuitAddress, P2pAddress
from peer.p2p.circuits.book import CircuitCaps
from peer.p2p.circuits.dht_key import Found
from peer.p2p.host import Host, OpenLink
from peer.p2p.libp2p_host import close_connections, make_host
from peer.p2p.streams.buffers import LinkBuffers
from peer.p2p.streams.limits import HostLimits
from rollcast.runtime.errors import Unreachable
from rollcast.runtime.waits import deadline, result_or_released
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import PeerId

_START_S = 30.0
_STOP_S = 5.0
_AWAY = "the libp2p thread does not run"


class ThreadOwner(Protocol):
    """The owner of the thread, called on the event loop; only ``certificate_der`` is read in the thread."""

    @property
    def certificate_der(self) -> bytes:
        """Return this peer's certificate of the run, in DER form."""

    def link_opened(self, link: OpenLink) -> None:
        """Take a link that another peer opened."""

    def is_certificate_of(self, peer_id: PeerId, certificate_der: bytes) -> bool:
        """Return whether the certificate is of the run and names this peer."""

    def reserved(self, circuits: tuple[str, ...]) -> None:
        """Take the addresses at which this peer can be reached through relays now."""

    def found(self, found: Found) -> None:
        """Take the members that the DHT names, and their addresses."""

    def pass_on(self, grant: Callable[[int], None]) -> None:
        """Call ``grant`` with another portion to pass on for others, sooner or later."""

    def thread_ended(self, error: BaseException | None) -> None:
        """Handle the end of the thread; ``error`` is what ended it, or None after ``stop``."""


class HostThread:
    """One life of the thread; make it on the event loop.

    Args:
        listen: address to listen on for TCP; None: do not listen.
        owner: notified on the event loop.
        caps: limits on what is passed on for others; None: nothing is passed on.
        dht_key: key of the run in the table of its members; None: no table is kept.
    """

    def __init__(
        self,
        identity: Identity,
        limits: HostLimits,
        listen: P2pAddress | None,
        owner: ThreadOwner,
        caps: CircuitCaps | None = None,
        dht_key: bytes | None = None,
    ) -> None:
        self._identity = identity
        self._limits = limits
        self._listen = listen
        self._owner = owner
        self._caps = caps
        self._dht_key = dht_key
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._over = asyncio.Event()
        self._given_up = False
        self._stop_asked = False
        self._thread = threading.Thread(target=self._main, name="libp2p", daemon=True)
        self._token: trio.lowlevel.TrioToken | None = None
        self._stopping: trio.Event | None = None
        self._nursery: trio.Nursery | None = None
        self._host: Host | None = None
        self._dials = 0

    # ------------------------------------------------------------- event loop

    async def start(self) -> None:
        """Start the thread, which runs until ``stop``, and wait until libp2p listens.

        If this is cancelled or raises, the thread ends, and its owner's ``thread_ended`` is not called.

        Raises:
            Unreachable: the thread ended before libp2p ran.
            WaitTimedOut: libp2p did not begin to listen in time.
        """
        self._thread.start()
        try:
            async with deadline(_START_S, "libp2p to listen"):
                await self._started
        except BaseException:
            self._given_up = True
            self._ask_to_stop()
            raise

    async def dial(self, peer_id: PeerId, address: P2pAddress | CircuitAddress, timeout_s: float) -> OpenLink:
        """Return a link to exactly this peer.

        Raises:
            Unreachable: no host answers there, or the thread is over, or too many dials are under way.
            WrongKey: another host answers there.
            WaitTimedOut: the dial took too long.
        """
        if self._dials >= self._limits.dials_most:
            raise Unreachable("too many p2p dials are under way")
        result: asyncio.Future[OpenLink] = self._loop.create_future()
        scope = trio.CancelScope()
        self._dials += 1
        try:
            if not self._call_host(lambda: self._spawn(self._dial, peer_id, address, timeout_s, scope, result)):
                raise Unreachable(_AWAY)
            async with deadline(timeout_s, f"a p2p link to {peer_id} at {address}"):
                return await result_or_released(result, lambda link: link.buffers.abort())
        except BaseException:
            self._call_host(scope.cancel)
            raise
        finally:
            self._dials -= 1

    def expect(self, peer_ids: Iterable[PeerId]) -> None:
        """Replace the peers that count as members because the coordinator or a verified record names them."""
        named = frozenset(peer_ids)
        self._run_on_host(lambda host: host.gate.policy.expect(named))

    def keep_out(self, banned: frozenset[PeerId]) -> None:
        """Replace the banned peers, which are no members whatever certificate they show."""
        self._run_on_host(lambda host: host.gate.policy.keep_out(banned))

    def member(self, peer_id: PeerId) -> None:
        """Accept a peer that has shown a certificate of the run."""
        self._run_on_host(lambda host: host.gate.member(peer_id))

    def refuse(self, peer_id: PeerId) -> None:
        """Refuse a peer that has shown something else than a certificate of the run."""
        self._run_on_host(lambda host: host.gate.refuse(peer_id))

    def want_relays(self, relays: tuple[P2pAddress, ...]) -> None:
        """Keep reservations at some of these relays."""
        self._run_on_host(lambda host: host.reservations.want(relays))

    def seek(self, seeds: Iterable[str], own: Iterable[str]) -> None:
        """Search for members, see Dht.seek; does nothing where no table is kept."""
        named = tuple(seeds), tuple(own)
        self._run_on_host(lambda host: host.dht.seek(*named) if host.dht is not None else None)

    def allow_relaying(self, *, allowed: bool) -> None:
        """Set whether anything may be passed on for others."""
        self._run_on_host(lambda host: host.relay.allow(allowed=allowed) if host.relay is not None else None)

    async def stop(self) -> None:
        """End the thread, and wait for its end at most _STOP_S."""
        self._ask_to_stop()
        if self._thread.is_alive() or self._token is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._over.wait()

    def _ask_to_stop(self) -> None:
        self._stop_asked = True  # set before _stopping is read: a thread that has not set it yet checks this flag next
        if self._stopping is not None:
            self._call_host(self._stopping.set)

    # ------------------------------------------------------------- libp2p thread

    def buffers(self) -> LinkBuffers:
        """See HostUser."""
        return LinkBuffers(self._limits.window_bytes, self._call_loop)

    def accepted(self, link: OpenLink) -> None:
        """See HostUser."""
        self._call_loop(lambda: self._owner.link_opened(link))

    def certificate(self) -> bytes:
        """See HostUser."""
        return self._owner.certificate_der

    def judge(self, peer_id: PeerId, certificate_der: bytes, answer: Callable[[bool], None]) -> None:
        """See HostUser."""
        self._call_loop(lambda: answer(self._owner.is_certificate_of(peer_id, certificate_der)))

    def reserved(self, circuits: tuple[str, ...]) -> None:
        """See HostUser."""
        self._call_loop(lambda: self._owner.reserved(circuits))

    def found(self, found: Found) -> None:
        """See HostUser."""
        self._call_loop(lambda: self._owner.found(found))

    def pass_on(self, grant: Callable[[int], None]) -> None:
        """See HostUser."""
        self._call_loop(lambda: self._owner.pass_on(grant))

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            trio.run(self._serve)
        except BaseException as problem:  # whatever it is, the daemon is notified and continues without libp2p
            error = problem
        self._call_loop(lambda: self._ended(error))

    async def _serve(self) -> None:
        self._stopping = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        if self._stop_asked:
            return
        host = make_host(self._identity, self._limits)
        listen = [Multiaddr(str(self._listen))] if self._listen is not None else []
        async with host.run(listen):
            try:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self._host = Host(host, self._limits, self, nursery, self._waker, self._caps, self._dht_key)
                    nursery.start_soon(self._host.serve)
                    self._call_loop(self._runs)
                    await self._stopping.wait()
                    nursery.cancel_scope.cancel()
            finally:  # libp2p would close them while being cancelled; here no socket stays open, whatever ends this
                await close_connections(host)

    async def _dial(
        self,
        peer_id: PeerId,
        address: P2pAddress | CircuitAddress,
        timeout_s: float,
        scope: trio.CancelScope,
        result: asyncio.Future[OpenLink],
    ) -> None:
        assert self._host is not None
        link: OpenLink | None = None
        problem: Exception = Unreachable(f"the dial of {peer_id} was given up")
        try:
            with scope, trio.move_on_after(timeout_s):
                link = await self._host.dial(peer_id, address)
        except Exception as error:
            problem = error
        finally:  # the caller's future must be settled also if the thread ends
            self._call_loop(lambda: _settle(result, link, problem))

    def _spawn(self, work: Callable[..., Any], *args: Any) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(work, *args)

    # ------------------------------------------------------------- across

    def _waker(self, call: Callable[[], None]) -> Callable[[], None]:
        return lambda: self._call_host_once(call)

    def _call_host_once(self, call: Callable[[], None]) -> None:
        assert self._token is not None
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call, idempotent=True)

    def _run_on_host(self, act: Callable[[Host], None]) -> None:
        host = self._host
        if host is not None:
            self._call_host(lambda: act(host))

    def _call_host(self, call: Callable[[], None]) -> bool:
        if self._token is None:
            return False
        try:
            self._token.run_sync_soon(call)
        except trio.RunFinishedError:
            return False
        return True

    def _call_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so there is nothing left to notify
            self._loop.call_soon_threadsafe(call)

    def _runs(self) -> None:
        if not self._started.done():
            self._started.set_result(None)

    def _ended(self, error: BaseException | None) -> None:
        self._over.set()
        if not self._started.done():
            self._started.set_exception(Unreachable(_AWAY, cause=_shown(error)))
        elif not self._given_up:
            self._owner.thread_ended(error)


def _settle(result: asyncio.Future[OpenLink], link: OpenLink | None, problem: Exception) -> None:
    if result.done():
        if link is not None:
            link.buffers.abort()
    elif link is not None:
        result.set_result(link)
    else:
        result.set_exception(problem)


def _shown(error: BaseException | None) -> str:
    """Return the innermost error of nested groups as text, because nurseries wrap what a task raised; empty: none."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if error is not None else ""
