"""Keep the port for hole punching mapped at the router, and pass the coordinator's orders to the transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import structlog

from peer.links.dial_policy import DialPolicy
from peer.punching.port import PunchPort
from peer.punching.port_keeper import watch
from peer.punching.transport import PunchTransport
from peer.reachability.advertised import AdvertisedReachability
from rollcast.runtime.errors import RollcastError, Unreachable
from rollcast.runtime.waits import backoff_delays_s
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()

NEEDS_NO_HOLE = frozenset({"open", "mapped", "symmetric"})
"""Kinds of NAT for which the port is not kept mapped: a peer that can be dialled needs no hole, and a symmetric router
uses another outside port for the next destination anyway."""
LOOKS_AGAIN_S = 15.0
_RETRY_FIRST_S = 1.0
_RETRY_MOST_S = 60.0


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
        options: Callable[[str], dict[str, Any]] | None,
        random: Random,
        policy: DialPolicy,
    ) -> None:
        self._transport = transport
        self._reachability = reachability
        self._send = send
        self._options = options
        self._random = random
        self._policy = policy
        self._session = asyncio.Event()
        self._watching: asyncio.Timeout | None = None
        self._address = self._problem = ""
        self._heard = False

    async def run(self) -> None:
        """Keep the port mapped while a session is open and the kind of NAT needs it."""
        options = self._options
        if options is None:
            return
        delays = backoff_delays_s(self._random, first_s=_RETRY_FIRST_S, most_s=_RETRY_MOST_S)
        while True:
            await self._session.wait()
            if not self._wanted:
                self._report("")
                await asyncio.sleep(LOOKS_AGAIN_S)
                continue
            self._heard = False
            try:
                async with asyncio.timeout(None) as self._watching:
                    await watch(options, self._port(), self._seen)
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

    def opened(self, welcome: pb.Welcome) -> None:
        """Allow attempts, which need the coordinator."""
        self._session.set()
        self._transport.opened(self._send)

    def lost(self) -> None:
        """Stop attempts, and end the connection that keeps the port mapped."""
        self._session.clear()
        self._transport.lost()
        if self._watching is not None:
            self._watching.reschedule(asyncio.get_running_loop().time())

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Pass the coordinator's order or refusal to the transport; an address that may not be dialled is refused."""
        punch = message.punch
        problem = self._policy.refusal(punch.address.rpartition(":")[0].strip("[]")) if punch.address else ""
        if problem:
            self._policy.reject(punch.address, problem)
            punch = pb.Punch(peer_id=punch.peer_id, refused=problem)
        self._transport.punch_received(punch)

    @property
    def _wanted(self) -> bool:
        return self._reachability.now.nat not in NEEDS_NO_HOLE

    def _port(self) -> PunchPort:
        try:
            return self._transport.port
        except OSError as error:
            raise Unreachable("no port for hole punching can be opened", cause=str(error)) from None

    def _seen(self, address: str) -> bool:
        if not self._wanted:
            return False
        self._heard, self._problem = True, ""
        self._report(address)
        return True

    def _log_once(self, error: RollcastError) -> None:
        """Log each reason once: attempts continue for as long as the process lives."""
        if str(error) != self._problem:
            self._problem = str(error)
            log.info("hole punching unavailable", code=error.code, reason=error.what, cause=error.cause)

    def _report(self, address: str) -> None:
        if address != self._address:
            self._address = address
            log.info("port for holes", seen_as=address or "unknown")
            self._reachability.set_punch_address(address)
