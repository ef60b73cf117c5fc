"""Listen for chunk links; ``peer.links.acceptor`` handles each connection."""

from __future__ import annotations

import asyncio
import errno
import ssl

from peer.links.acceptor import LinkAcceptor
from peer.links.stream_link import StreamLink
from peer.links.traffic import LinkTraffic
from peer.links.transport import Admission, LinkHandler
from rollcast.runtime.errors import RollcastError
from rollcast.runtime.process import bind_error, listening
from rollcast.wire.address_scope import with_port
from rollcast.wire.identity.tls import Caller, TlsCredentials
from rollcast.wire.ids import RunId
from rollcast.wire.links.handshake import LinkLimits
from rollcast.wire.links.stream import LinkStream
from rollcast.wire.links.tcp import SocketOptions

_BACKLOG = 128


class LinkServer:
    """Listens on one address. See LinkTaker for what it decides.

    Args:
        admit: returns why a caller is refused; empty if it is not.
        traffic: counts and caps the bytes that pass.
    """

    def __init__(
        self,
        credentials: TlsCredentials,
        run_id: RunId,
        admit: Admission,
        *,
        limits: LinkLimits,
        options: SocketOptions,
        traffic: LinkTraffic,
    ) -> None:
        self._acceptor = LinkAcceptor(credentials, run_id, limits=limits, options=options)
        self._limits = limits
        self._admit = admit
        self._traffic = traffic
        self._on_link: LinkHandler | None = None
        self._listener: asyncio.Server | None = None

    async def start(self, host: str, port: int, on_link: LinkHandler) -> int:
        """Listen, and pass every authenticated and greeted link to ``on_link``.

        Args:
            host: an address or name; "::" listens on every interface for IPv6 and IPv4.

        Returns:
            The port that is bound.

        Raises:
            PortInUse: the address cannot be bound.
        """
        self._on_link = on_link
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: self._acceptor.protocol(self),
                **listening(host, port),
                ssl=self._listening_context(),
                ssl_handshake_timeout=self._limits.handshake_timeout_s,
                ssl_shutdown_timeout=1.0,
                backlog=_BACKLOG,
            )
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
                raise
            raise bind_error(with_port(host, port), error, setting="link.port") from None
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    def renew(self, credentials: TlsCredentials) -> None:
        """Use this certificate from the next handshake on."""
        self._acceptor.renew(credentials)

    async def close(self) -> None:
        """Stop listening and close all links."""
        if self._listener is not None:
            self._listener.close()
        await self._acceptor.close()

    def admit(self, caller: Caller) -> str:
        """See LinkTaker."""
        return self._admit(caller)

    def greeted(self, stream: LinkStream, caller: Caller) -> None:
        """See LinkTaker."""
        assert self._on_link is not None
        link = StreamLink(stream, caller, self._traffic.of(stream.remote_address), dialled=False)
        link.start(self._on_link(link))

    def refused(self, caller: Caller, error: RollcastError) -> None:
        """See LinkTaker; the acceptor has logged it."""

    def _listening_context(self) -> ssl.SSLContext:
        """Return a context that looks up the newest in each handshake, because a listener keeps its first context."""
        context = self._acceptor.tls

        def use_newest(tls: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
            tls.context = self._acceptor.tls

        context.sni_callback = use_newest  # called for hellos without a server name as well
        return context
