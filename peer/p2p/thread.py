"""The thread in which libp2p runs, on trio, and the two ways across: calls in, calls out, both bounded."""

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
    """Who hears of everything, on the event loop; only ``certificate_der`` is read in the thread."""

    @property
    def certificate_der(self) -> bytes:
        """Ours, of the run."""

    def link_opened(self, link: OpenLink) -> None:
        """Somebody opened a link."""

    def is_certificate_of(self, peer_id: PeerId, certificate_der: bytes) -> bool:
        """Whether a certificate of the run names this peer."""

    def reserved(self, circuits: tuple[str, ...]) -> None:
        """At these addresses we can be reached through relays now."""

    def found(self, found: Found) -> None:
        """These say in the table of members that they can be reached."""

    def pass_on(self, grant: Callable[[int], None]) -> None:
        """Have another portion passed on for others, sooner or later."""

    def thread_ended(self, error: BaseException | None) -> None:
        """The thread is over: with what ended it, or None after ``stop``."""


class HostThread:
    """One life of the thread; make it on the event loop.

    Args:
        listen: where to listen for TCP; None: nowhere.
        caps: of what is passed on for others; None: nothing is.
        dht_key: of the run in a table of its members; None: there is none.
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
        """Run until ``stop``; where this is cancelled or raises, the thread ends, and its owner hears nothing of it.

        Raises:
            Unreachable: it ended before it ran.
            WaitTimedOut: it did not begin to listen in time.
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
        """A link to exactly this peer.

        Raises:
            Unreachable: nobody answers there, or the thread is over, or too many dials are under way.
            WrongKey: somebody else answers there.
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
        """These are members of the run."""
        named = frozenset(peer_ids)
        self._tell_host(lambda host: host.gate.policy.expect(named))

    def keep_out(self, banned: frozenset[PeerId]) -> None:
        """These are members no more, whatever they show."""
        self._tell_host(lambda host: host.gate.policy.keep_out(banned))

    def member(self, peer_id: PeerId) -> None:
        """It has shown a certificate of the run."""
        self._tell_host(lambda host: host.gate.member(peer_id))

    def refuse(self, peer_id: PeerId) -> None:
        """It has shown something else."""
        self._tell_host(lambda host: host.gate.refuse(peer_id))

    def want_relays(self, relays: tuple[P2pAddress, ...]) -> None:
        """Keep reservations at some of these."""
        self._tell_host(lambda host: host.reservations.want(relays))

    def seek(self, seeds: Iterable[str], own: Iterable[str]) -> None:
        """See Dht."""
        named = tuple(seeds), tuple(own)
        self._tell_host(lambda host: host.dht.seek(*named) if host.dht is not None else None)

    def allow_relaying(self, *, allowed: bool) -> None:
        """Whether anything may be passed on for others."""
        self._tell_host(lambda host: host.relay.allow(allowed=allowed) if host.relay is not None else None)

    async def stop(self) -> None:
        """End it, and wait for a few seconds."""
        self._ask_to_stop()
        if self._thread.is_alive() or self._token is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._over.wait()

    def _ask_to_stop(self) -> None:
        self._stop_asked = True  # before the look at the token: a thread that has none yet looks here once it has
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
        except BaseException as problem:  # whatever it is, the daemon hears of it and goes on without
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
            finally:  # libp2p would close them while it is being cancelled, and whatever ends us, sockets are not left
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
        finally:  # whoever waits hears of it also where the thread ends
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

    def _tell_host(self, tell: Callable[[Host], None]) -> None:
        host = self._host
        if host is not None:
            self._call_host(lambda: tell(host))

    def _call_host(self, call: Callable[[], None]) -> bool:
        if self._token is None:
            return False
        try:
            self._token.run_sync_soon(call)
        except trio.RunFinishedError:
            return False
        return True

    def _call_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to hear of it
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
    """The innermost of nested groups: nurseries wrap what a task raised."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if error is not None else ""
