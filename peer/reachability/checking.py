"""Check how this machine is seen from outside and who can dial it, and dial other peers back on request."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_address
from random import Random

import structlog

from peer.links.dial_policy import DialPolicy
from peer.reachability.advertised import AdvertisedReachability
from peer.reachability.nat_kind import Seen
from peer.reachability.summary import ReachabilitySummary
from rollcast.runtime.background import Background
from rollcast.runtime.errors import MalformedMessage, RollcastError
from rollcast.runtime.waits import backoff_delays_s
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.limits import PEER_ID_LENGTH_MAX, TEXT_LENGTH_MAX
from rollcast.wire.links.probe import PROBE_DEADLINE_S, probe_link, problem_in
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()

AGAIN_AFTER_S = 1800.0
"""Seconds between two checks: routers change, and machines move from one network to another."""
_ADDRESS_LOOKED_AT_S = 30.0
_SPREAD_S = 2.0  # random delay, so that peers that join together do not all ask at once
_FIRST_RETRY_S, _MOST_RETRY_S = 5.0, 600.0
_DIALS_AT_ONCE = 4
_DIALS_A_MINUTE = 30
_NOWHERE = "192.0.2.1"  # RFC 5737: an address that no host has; connecting a UDP socket sends nothing
NOWHERE_IPV6 = "2001:db8::1"  # RFC 3849
_DISCARD_PORT = 9


class ReachabilityCheck:
    """The reachability check, a connectivity component (peer.connect.connectivity).

    Create it inside a running event loop.

    Args:
        probe: returns how a port of this machine is seen from outside; raises RollcastError if the check fails.
        local_address: returns this machine's address on the way to the internet; empty: there is no route.
        policy: decides which addresses are dialled back.
    """

    kinds = frozenset({"dial_back", "dial_verdict"})

    def __init__(
        self,
        probe: Callable[[], Awaitable[Seen]],
        *,
        summary: ReachabilitySummary,
        reachability: AdvertisedReachability,
        send: Callable[[pb.PeerMessage], None],
        credentials: Callable[[], TlsCredentials],
        run_id: RunId,
        random: Random,
        policy: DialPolicy,
        local_address: Callable[[], str] | None = None,
    ) -> None:
        self._probe = probe
        self._summary, self._reachability, self._send = summary, reachability, send
        self._credentials, self._run_id = credentials, run_id
        self._random = random
        self._policy = policy
        self._local_address = local_address or address_on_the_way_out
        self._session = asyncio.Event()
        self._check_again = asyncio.Event()
        self._dials = Background("a dial-back failed")
        self._dialled_at_s: deque[float] = deque(maxlen=_DIALS_A_MINUTE)

    # ------------------------------------------------------------ see ConnectivityComponent

    async def run(self) -> None:
        """Check in each new session, when this machine's address changes, and every AGAIN_AFTER_S seconds."""
        try:
            while True:
                await self._session.wait()
                await asyncio.sleep(self._random.uniform(0.0, _SPREAD_S))
                self._check_again.clear()
                address = self._local_address()
                await self._probe_until_seen()
                await self._wait(address)
        finally:
            await self._dials.end()

    def opened(self, welcome: pb.Welcome) -> None:
        """Check again: the coordinator may see this machine at another address now."""
        self._session.set()
        self._check_again.set()

    def lost(self) -> None:
        """Pause checks: they need the coordinator."""
        self._session.clear()

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Dial another peer back, or take the verdict about this one."""
        if message.WhichOneof("body") == "dial_verdict":
            self._verdict_received(message.dial_verdict)
        else:
            self._asked(message.dial_back)

    # ------------------------------------------------------------ how this machine is seen

    async def _probe_until_seen(self) -> None:
        for delay_s in backoff_delays_s(self._random, first_s=_FIRST_RETRY_S, most_s=_MOST_RETRY_S):
            try:
                seen = await self._probe()
            except RollcastError as error:
                log.info("reachability check failed", code=error.code, reason=error.what)
            else:
                before, self._summary.seen = self._summary.nat, seen
                if self._summary.nat != before:
                    log.info("seen from outside", nat=self._summary.nat, address=seen.address)
                self._reachability.set_nat(self._summary.nat)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._check_again.wait()  # a new session ends the backoff
            self._check_again.clear()
            await self._session.wait()

    async def _wait(self, address: str) -> None:
        """Wait until the next check is due, or this machine's address has changed from ``address``."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + AGAIN_AFTER_S * self._random.uniform(0.9, 1.1)
        while (left_s := until_s - loop.time()) > 0.0 and not self._check_again.is_set():
            try:
                async with asyncio.timeout(min(left_s, _ADDRESS_LOOKED_AT_S)):
                    await self._check_again.wait()
            except TimeoutError:
                if self._local_address() != address:
                    return

    # ------------------------------------------------------------ verdicts about this machine

    def _verdict_received(self, verdict: pb.DialVerdict) -> None:
        if len(verdict.address) > TEXT_LENGTH_MAX or len(verdict.problem) > TEXT_LENGTH_MAX:
            raise MalformedMessage("the coordinator's dial-back verdict has too long a text")
        before = self._summary.verdict
        self._summary.verdict = verdict
        self._reachability.set_nat(self._summary.nat)
        if before is not None and (before.dialable, before.asked) == (verdict.dialable, verdict.asked):
            return
        facts = {"address": verdict.address, "asked": verdict.asked, "reached": verdict.reached}
        if verdict.asked and not verdict.dialable:
            log.warning("other peers cannot dial this one, which dials them", **facts, reason=verdict.problem)
        elif verdict.asked:
            log.info("dialable", **facts)
        else:
            log.info("no peer dialled back", address=verdict.address, reason=verdict.problem)

    # ------------------------------------------------------------ dialling others back

    def _asked(self, order: pb.DialBack) -> None:
        host, _, port = order.address.rpartition(":")
        try:
            ip_address(host.strip("[]"))
            valid = port.isdecimal() and 0 < int(port) < 1 << 16 and 0 < len(order.peer_id) <= PEER_ID_LENGTH_MAX
        except ValueError:
            valid = False
        if not valid:
            raise MalformedMessage("the coordinator's dial-back request names no peer, or no IP address and port")
        now_s = asyncio.get_running_loop().time()
        often = len(self._dialled_at_s) == _DIALS_A_MINUTE and now_s - self._dialled_at_s[0] < 60.0
        if often or len(self._dials) >= _DIALS_AT_ONCE:
            return  # the coordinator does not count peers that do not answer
        self._dialled_at_s.append(now_s)
        self._dials.spawn(self._dial(order))

    async def _dial(self, order: pb.DialBack) -> None:
        problem = ""
        try:
            await self._policy.allowed(PeerId(order.peer_id), order.address)
            await probe_link(
                PeerId(order.peer_id),
                order.address,
                credentials=self._credentials(),
                run_id=self._run_id,
                deadline_s=PROBE_DEADLINE_S,
            )
        except RollcastError as error:
            problem = problem_in(error)[:TEXT_LENGTH_MAX]
        outcome = pb.DialBackOutcome(check_id=order.check_id, reached=not problem, problem=problem)
        self._send(pb.PeerMessage(dial_back_outcome=outcome))


def address_on_the_way_out(to: str = _NOWHERE) -> str:
    """Return this machine's own address on the route to the IP address ``to``, by default the IPv4 internet.

    Empty: no route.
    """
    with socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM) as out:
        try:
            out.connect((to, _DISCARD_PORT))
        except OSError:
            return ""
        return str(out.getsockname()[0])
