"""Keep the ports for hole punching mapped at the router, and pass the coordinator's orders to the transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import ip_address
from random import Random
from typing import Any
from urllib.parse import urlsplit

import structlog

from peer.links.dial_policy import DialPolicy
from peer.punching.port import PunchPort
from peer.punching.port_keeper import PATH, watch
from peer.punching.transport import PunchTransport
from peer.reachability.advertised import AdvertisedReachability
from rollcast.runtime.errors import RollcastError, Unreachable
from rollcast.runtime.waits import backoff_delays_s
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()

NEEDS_NO_HOLE = {
    4: frozenset({"open", "mapped", "symmetric"}),
    6: frozenset({"open", "mapped"}),
}
"""Kinds of NAT for which no port is kept mapped, by version of IP: a peer that can be dialled needs no hole, and a
symmetric router uses another outside port for the next destination anyway, but only translates IPv4."""
LOOKS_AGAIN_S = 15.0
_RETRY_FIRST_S = 1.0
_RETRY_MOST_S = 60.0

Options = Callable[[str], dict[str, Any]]


class PunchComponent:
    """Hole punching, a connectivity component (peer.connect.connectivity). Call it inside a running event loop.

    Args:
        send: queues a message in the session.
        options: returns the arguments of one aiohttp request to the coordinator as a member, by its path; None: the
            coordinator is on this machine and cannot see its outside address.
        policy: decides to which addresses holes are punched.
    """

    kinds = frozenset({"punch"})

    def __init__(
        self,
        transport: PunchTransport,
        reachability: AdvertisedReachability,
        send: Callable[[pb.PeerMessage], None],
        options: Options | None,
        random: Random,
        policy: DialPolicy,
    ) -> None:
        self._transport = transport
        self._send = send
        self._policy = policy
        self._kept: list[_KeptPort] = []
        if options is not None:
            self._kept = [_KeptPort(version, transport, reachability, options, random) for version in (4, 6)]

    async def run(self) -> None:
        """Keep the ports mapped while a session is open and the kind of NAT needs it."""
        async with asyncio.TaskGroup() as group:
            for one in self._kept:
                group.create_task(one.run())

    def opened(self, welcome: pb.Welcome) -> None:
        """Allow attempts, which need the coordinator."""
        for one in self._kept:
            one.opened()
        self._transport.opened(self._send)

    def lost(self) -> None:
        """Stop attempts, and end the connections that keep the ports mapped."""
        self._transport.lost()
        for one in self._kept:
            one.lost()

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Pass the coordinator's order or refusal to the transport, without addresses that may not be dialled."""
        order = pb.Punch()
        order.CopyFrom(message.punch)
        problems = [self._strike(order, name) for name in ("address", "address_ipv6")]
        if any(problems) and not (order.address or order.address_ipv6):
            order = pb.Punch(peer_id=order.peer_id, refused="; ".join(filter(None, problems)))
        self._transport.punch_received(order)

    def _strike(self, order: pb.Punch, name: str) -> str:
        """Clear this address of the order if it may not be dialled, and return why; empty if it may be."""
        address: str = getattr(order, name)
        problem = self._policy.refusal(address.rpartition(":")[0].strip("[]")) if address else ""
        if problem:
            self._policy.reject(address, problem)
            order.ClearField(name)
        return problem


class _KeptPort:
    """Keeps the port for holes over one version of IP mapped, and reports where the coordinator sees it."""

    def __init__(
        self,
        version: int,
        transport: PunchTransport,
        reachability: AdvertisedReachability,
        options: Options,
        random: Random,
    ) -> None:
        self._version = version
        self._transport = transport
        self._reachability = reachability
        self._options = options
        self._random = random
        self._session = asyncio.Event()
        self._watching: asyncio.Timeout | None = None
        self._address = self._problem = ""
        self._heard = False

    async def run(self) -> None:
        delays = backoff_delays_s(self._random, first_s=_RETRY_FIRST_S, most_s=_RETRY_MOST_S)
        while True:
            await self._session.wait()
            if not (self._wanted and self._may_lead):
                self._report("")
                await asyncio.sleep(LOOKS_AGAIN_S)
                continue
            self._heard = False
            try:
                async with asyncio.timeout(None) as self._watching:
                    await watch(self._options, self._port(), self._seen)
            except TimeoutError:
                pass  # the session ended, perhaps by a restart of the router, which changes the port too
            except RollcastError as error:
                self._log_once(error)
            self._watching = None
            if self._heard:
                delays = backoff_delays_s(self._random, first_s=_RETRY_FIRST_S, most_s=_RETRY_MOST_S)
            else:  # a connection that broke usually returns at once with the same port; this one never worked
                self._report("")
            await asyncio.sleep(next(delays))

    def opened(self) -> None:
        self._session.set()

    def lost(self) -> None:
        self._session.clear()
        if self._watching is not None:
            self._watching.reschedule(asyncio.get_running_loop().time())

    @property
    def _wanted(self) -> bool:
        return self._reachability.now.nat not in NEEDS_NO_HOLE[self._version]

    @property
    def _may_lead(self) -> bool:
        """Whether the coordinator may have an address of this version: a name may, an IP address says its own."""
        host = urlsplit(self._options(PATH)["url"]).hostname or ""
        try:
            return ip_address(host).version == self._version
        except ValueError:
            return True

    def _port(self) -> PunchPort:
        try:
            return self._transport.port(self._version)
        except OSError as error:
            raise Unreachable("no port for hole punching can be opened", cause=str(error)) from None

    def _seen(self, address: str) -> bool:
        if not self._wanted:
            return False
        self._heard, self._problem = True, ""
        self._report(address)
        return True

    def _log_once(self, error: RollcastError) -> None:
        """Log each reason once: attempts continue for as long as the process lives. Many machines have no IPv6."""
        if str(error) != self._problem:
            self._problem = str(error)
            level = log.info if self._version == 4 else log.debug
            level(
                "hole punching unavailable",
                ip_version=self._version,
                code=error.code,
                reason=error.what,
                cause=error.cause,
            )

    def _report(self, address: str) -> None:
        if address != self._address:
            self._address = address
            log.info("port for holes", ip_version=self._version, seen_as=address or "unknown")
            self._reachability.set_punch_address(self._version, address)
