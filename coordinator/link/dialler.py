"""Keep a gateway linked to the core: dial the addresses of the run's coordinators in turn."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from random import Random

import structlog

from coordinator.link.connection import LinkConnection
from coordinator.link.gateway_end import RemoteCore
from coordinator.link.listener import host_and_port
from rollcast.runtime.errors import RollcastError, Unreachable, WrongKey
from rollcast.runtime.waits import backoff_delays_s, deadline
from rollcast.wire.identity.certificates import caller_from_der
from rollcast.wire.ids import RunId

log = structlog.get_logger()

CONNECT_TIMEOUT_S = 10.0
DELAY_MOST_S = 0.2  # between two attempts, which cost next to nothing: everybody waits for the core
# A core that is silent may be busy, so it keeps the link until LinkConnection gives it up, unless another one answers.
SILENT_S = 2.0
WATCH_S = 0.25  # between two looks at a silent core, and between two rounds of attempts to find another one
READY_TIMEOUT_S = 2.0  # for a core to answer a greeting
READY_POLL_S = 0.02


class LinkDialler:
    """Dials the core, again and again.

    Args:
        addresses: paths of Unix sockets or HOST:PORT, at least one.
        tls: returns the context for HOST:PORT and the run whose coordinator must answer.
        give_up_s: seconds without a core after which ``run`` ends.
    """

    def __init__(
        self,
        core: RemoteCore,
        addresses: Sequence[str],
        tls: Callable[[], Awaitable[tuple[ssl.SSLContext, RunId]]],
        give_up_s: float,
        random: Random,
    ) -> None:
        self._core = core
        self._addresses = tuple(addresses)
        self._tls = tls
        self._give_up_s = give_up_s
        self._random = random

    async def run(self) -> None:
        """Keep a link open until cancelled.

        Raises:
            Unreachable: there was no core for too long.
        """
        loop = asyncio.get_running_loop()
        alone_since_s, delays = loop.time(), self._delays()
        logged = dict[str, str]()  # the last reason by address
        for address in itertools.cycle(self._addresses):
            fix = "check that the coordinator runs, and that core names what its gateways.listen does"
            try:
                reason = await self._one_link(address)
            except OSError as error:
                reason = str(error)
            except RollcastError as error:
                reason, fix = ": ".join(filter(None, (error.code, error.what, error.cause))), error.fix or fix
            if self._core.was_linked:
                self._core.was_linked = False
                alone_since_s, delays = loop.time(), self._delays()
                logged.clear()
            if reason != logged.get(address):
                log.warning("no link to the core", address=address, reason=reason)
                logged[address] = reason
            if loop.time() - alone_since_s >= self._give_up_s:
                raise Unreachable(
                    f"no coordinator at {' or '.join(self._addresses)} for {self._give_up_s:g} s",
                    cause=reason,
                    fix=fix,
                )
            await asyncio.sleep(next(delays))

    def _delays(self) -> Iterator[float]:
        return backoff_delays_s(self._random, most_s=DELAY_MOST_S)

    async def _one_link(self, address: str) -> str:
        """Hold one link from dial to end, or links one after another, each of which replaced a silent one.

        Return why the last one ended.

        Raises:
            OSError, RollcastError: it did not begin.
        """
        link, ended = await self._dial(address)
        try:
            while (found := await self._successor(link, ended, address)) is not None:
                link.abort("the core was silent, and another one answered")
                link, ended, address = found
            return await ended
        finally:
            link.end("this end gave it up")

    async def _dial(self, address: str) -> tuple[LinkConnection, asyncio.Future[str]]:
        """Connect and greet a core.

        Raises:
            OSError, RollcastError: it cannot be reached.
        """
        loop, place = asyncio.get_running_loop(), host_and_port(address)
        link, ended = self._core.new_link()
        try:
            async with deadline(CONNECT_TIMEOUT_S, f"a connection to the core at {address}"):
                if place is None:
                    await loop.create_unix_connection(lambda: link, address)
                else:
                    context, run_id = await self._tls()
                    await loop.create_connection(lambda: link, *place, ssl=context)
                    _check_core(link, run_id)
        except BaseException:
            link.end("this end gave it up")
            raise
        self._core.greet(link)
        return link, ended

    async def _successor(
        self, link: LinkConnection, ended: asyncio.Future[str], address: str
    ) -> tuple[LinkConnection, asyncio.Future[str], str] | None:
        """Wait until another core has answered while this one is silent, and return its link; None: this one ended.

        A standby does not listen before it leads, so that a core without a successor loses no link.
        """
        others = [one for one in self._addresses if one != address]
        while True:
            await asyncio.wait((ended,), timeout=WATCH_S)
            if ended.done():
                return None
            if link.silent_s < SILENT_S:
                continue
            for other in others:
                with suppress(OSError, RollcastError):
                    new, new_ended = await self._dial(other)
                    if await self._is_answered(new, new_ended):
                        log.warning("the core is silent, and another one answers", silent=address, address=other)
                        return new, new_ended, other
                    new.abort("it did not answer the greeting")

    async def _is_answered(self, link: LinkConnection, ended: asyncio.Future[str]) -> bool:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + READY_TIMEOUT_S
        while not self._core.is_linked_by(link) and not ended.done() and loop.time() < end_s:
            await asyncio.wait((ended,), timeout=READY_POLL_S)
        return self._core.is_linked_by(link)


def _check_core(link: LinkConnection, run_id: RunId) -> None:
    """Check that a coordinator answered, and not another member with a certificate of the run.

    Raises:
        WrongKey: it is another one.
    """
    tls = link.ssl_object
    caller = caller_from_der((tls.getpeercert(binary_form=True) if tls is not None else None) or b"")
    if caller.role != "coordinator" or caller.run_id != run_id:
        raise WrongKey(f"the server at the core's address is {caller.uri}, not the run's coordinator")
