"""Run HTTP over sockets that are connected already, because they were not dialled in the ordinary way."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from rollcast.wire.address_scope import with_port


class ConnectedSockets(aiohttp.BaseConnector):
    """A connector that uses each socket passed to ``add`` once, for its address, and dials nothing.

    aiohttp's own connector for Unix sockets replaces the same one method.
    """

    def __init__(self) -> None:
        super().__init__(limit=0, force_close=True)
        self._handed: dict[str, socket.socket] = {}

    def add(self, sock: socket.socket) -> str:
        """Keep a connected socket for the next request to its remote address.

        Returns:
            The remote address, host:port. No two connections from one local port have the same.

        Raises:
            OSError: the socket is no longer connected.
        """
        host, port, *_ = sock.getpeername()
        address = with_port(host, port)
        self.drop(address)
        self._handed[address] = sock
        return address

    def drop(self, address: str) -> None:
        """Close the socket for an address if no request has used it."""
        sock = self._handed.pop(address, None)
        if sock is not None:
            sock.close()

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp calls it so
    ) -> ResponseHandler:
        address = with_port(req.url.host or "", req.port or 0)
        sock = self._handed.pop(address, None)
        if sock is None:
            raise aiohttp.ClientConnectionError(f"there is no connection to {address}")
        context = req.ssl
        assert isinstance(context, ssl.SSLContext)
        try:
            _, protocol = await asyncio.get_running_loop().create_connection(
                self._factory, sock=sock, ssl=context, server_hostname=req.url.host
            )
        except ssl.SSLError as error:
            raise aiohttp.ClientConnectorSSLError(req.connection_key, error) from error
        except OSError as error:
            raise aiohttp.ClientOSError(error.errno, str(error)) from error
        return protocol
