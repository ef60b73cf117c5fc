"""The coordinator's own dials back: what coordinator.core.traversal.dial_backs decides, carried out."""

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
from rollcast.runtime.errors import RollcastError, Unreachable
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import RunId
from rollcast.wire.links.probe import probe_link, problem_in

_LOOK_UP_S = 2.0
_LOOK_UPS_AT_ONCE = 4


class BackDialer:
    """Args:
    credentials: the coordinator's own.
    tell: where what was found goes.
    """

    def __init__(
        self,
        credentials: TlsCredentials,
        run_id: RunId,
        settings: DialBackSettings,
        tell: Callable[[DialBackEnded], None],
    ) -> None:
        self._credentials, self._run_id = credentials, run_id
        self._settings = settings
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()
        # Members choose the names: one whose servers say nothing holds a thread for long, and must hold none of those
        # that certificates wait for.
        self._look_ups = ThreadPoolExecutor(_LOOK_UPS_AT_ONCE, thread_name_prefix="dial-back")

    def take(self, action: TryAddress) -> None:
        """Begin one; how many there are at once is the core's to decide."""
        task = asyncio.create_task(self._try(action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Drop what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._look_ups.shutdown(wait=False, cancel_futures=True)

    async def _try(self, action: TryAddress) -> None:
        address, check_id, found = action.address, action.check_id, ""
        if action.host:
            try:
                address = found = await self._looked_up(action.address, action.host)
            except RollcastError as error:
                self._tell(DialBackEnded(OURSELVES, check_id, False, problem_in(error), tried=False))
                return
        try:
            await probe_link(action.peer_id, address, credentials=self._credentials, run_id=self._run_id)
        except RollcastError as error:
            self._tell(DialBackEnded(OURSELVES, check_id, False, problem_in(error), address=found))
        else:
            self._tell(DialBackEnded(OURSELVES, check_id, True, address=found))

    async def _looked_up(self, address: str, host: str) -> str:
        """An IP address that the name has and that may be dialled, with its port.

        Raises:
            Unreachable: there is none.
            WaitTimedOut: the name server does not answer.
        """
        name, port = host_part(address), address.rpartition(":")[2]
        async with deadline(_LOOK_UP_S, f"the address of {name}"):
            try:
                rows = await asyncio.get_running_loop().run_in_executor(
                    self._look_ups, partial(socket.getaddrinfo, name, int(port), type=socket.SOCK_STREAM)
                )
            except (OSError, UnicodeError):
                raise Unreachable(f"the name {name} has no address here") from None
        for row in rows:
            one = str(row[4][0]).partition("%")[0]
            if self._settings.allow(one, host):
                return f"[{one}]:{port}" if ":" in one else f"{one}:{port}"
        raise Unreachable(f"{name} leads elsewhere than to {host}: nothing else is dialled")
