"""Carry out the coordinator's dial-backs, which coordinator.core.traversal.dial_backs decides."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from coordinator.core.events.actions import TryAddress
from coordinator.core.events.reach_events import DialBackEnded
from coordinator.core.reach.address_book import host_part
from coordinator.core.reach.dial_settings import DialBackSettings
from coordinator.core.traversal.dial_backs import OURSELVES
from rollcast.runtime.background import Background
from rollcast.runtime.errors import RollcastError, Unreachable
from rollcast.runtime.waits import deadline
from rollcast.wire.address_scope import with_port
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import RunId

_RESOLVE_S = 2.0
_RESOLVED_AT_ONCE = 4  # names resolved at once, each in a thread


class BackDialer:
    """Dials members to test whether they can be reached.

    Args:
        credentials: the coordinator's own.
        report: receives the result of each test.
    """

    def __init__(
        self,
        credentials: TlsCredentials,
        run_id: RunId,
        settings: DialBackSettings,
        report: Callable[[DialBackEnded], None],
    ) -> None:
        self._credentials, self._run_id = credentials, run_id
        self._settings = settings
        self._report = report
        self._tests = Background("a dial-back failed")
        # Members choose the names. One whose servers are silent blocks a thread for long: it must be none of
        # those that certificates wait for.
        self._resolvers = ThreadPoolExecutor(_RESOLVED_AT_ONCE, thread_name_prefix="dial-back")

    def take(self, action: TryAddress) -> None:
        """Start a test; the core limits how many run at once."""
        self._tests.spawn(self._try(action))

    async def close(self) -> None:
        """Cancel the tests in progress."""
        await self._tests.end()
        self._resolvers.shutdown(wait=False, cancel_futures=True)

    async def _try(self, action: TryAddress) -> None:
        await asyncio.to_thread(_load_probe)
        from rollcast.wire.links.probe import probe_link, problem_in

        address, check_id, found = action.address, action.check_id, ""
        if action.host:
            try:
                address = found = await self._resolve(action.address, action.host)
            except RollcastError as error:
                self._report(DialBackEnded(OURSELVES, check_id, False, problem_in(error), tried=False))
                return
        try:
            await probe_link(action.peer_id, address, credentials=self._credentials, run_id=self._run_id)
        except RollcastError as error:
            self._report(DialBackEnded(OURSELVES, check_id, False, problem_in(error), address=found))
        else:
            self._report(DialBackEnded(OURSELVES, check_id, True, address=found))

    async def _resolve(self, address: str, host: str) -> str:
        """Resolve a name to an IP address that may be dialed, with its port.

        Raises:
            Unreachable: the name has no such address.
            WaitTimedOut: the name server does not answer.
        """
        name, port = host_part(address), address.rpartition(":")[2]
        async with deadline(_RESOLVE_S, f"the address of {name}"):
            try:
                rows = await asyncio.get_running_loop().run_in_executor(
                    self._resolvers, partial(socket.getaddrinfo, name, int(port), type=socket.SOCK_STREAM)
                )
            except (OSError, UnicodeError):
                raise Unreachable(f"the coordinator cannot resolve the name {name}") from None
        for row in rows:
            one = str(row[4][0]).partition("%")[0]
            if self._settings.allow(one, host):
                return with_port(one, port)
        raise Unreachable(f"{name} resolves to another address than {host}, and only that may be dialed")


def _load_probe() -> None:
    """Load what dials chunk links, and aiohttp with it: a start need not wait for them."""
    import rollcast.wire.links.probe  # noqa: F401
