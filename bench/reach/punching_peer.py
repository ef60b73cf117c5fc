"""Run one end of a hole through two routers with a peer's own code: its session, punching port and transport.

usage: punching_peer.py INVITE_FILE FOLDER

The program obeys lines of JSON on stdin, as hole_puncher.py does. {"try", "do": "observe"}: it joins the run under a
new identity and prints "observed TRY PEER_ID 0" once the coordinator has that peer's router kind and punching address.
{"try", "do": "punch", "address": PEER_ID}: the end with the larger id asks the coordinator for a hole to the other end;
each prints "through TRY SECONDS" once it has a link on which a message arrived, or "failed TRY". The program detects
its kind of router as every peer does.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from bench.reach.hole_puncher import orders
from peer.config import LinkConfig, PeerConfig
from peer.connect.connectivity import Connectivity
from peer.links.dial_policy import DialPolicy
from peer.links.traffic import LinkTraffic
from peer.links.transport import Link
from peer.punching.component import PunchComponent
from peer.punching.transport import PunchTransport
from peer.reachability.advertised import AdvertisedReachability
from peer.reachability.nat_kind import NatKind, nat_kind
from peer.reachability.nat_probe import MemberHttp, seen_from_outside
from peer.session.hello import hello_of
from peer.session.session import Session, SessionSettings
from rollcast.runtime.errors import RollcastError
from rollcast.runtime.logs import configure_logging
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import PeerId
from rollcast.wire.joining.enrol import Enrolment, enrol
from rollcast.wire.joining.grpc_client import open_channel
from rollcast.wire.joining.invite import read_invite
from rollcast.wire.links.frames import LinkFrame
from rollcast.wire.proto import rollcast_pb2 as pb

_JOIN_S = 30.0
_REPORT_S = 0.3  # seconds that a report may take to reach the coordinator
_CONFIG = PeerConfig(link=LinkConfig(advertise="none"))


class Member:
    """A peer of one try: a session, and links through holes."""

    def __init__(self, identity: Identity, enrolment: Enrolment) -> None:
        config, self.peer_id = LinkConfig(), identity.peer_id
        self.door = MemberHttp(identity, enrolment)
        addresses = (enrolment.grpc_address,)
        self.session = Session(
            SessionSettings(enrolment.run_id, enrolment.learner_public_key, addresses, _JOIN_S, _JOIN_S),
            open_channel=lambda address: open_channel(address, enrolment.credentials),
            failed_hop=_unknown_hop,
            hello=_hello,
            heartbeat=pb.Heartbeat,
            listener=self,
            random=Random(),
        )
        self.transport = PunchTransport(
            config, enrolment.credentials, enrolment.run_id, lambda _: "", traffic=LinkTraffic(config)
        )
        self.reached = AdvertisedReachability(self.session.send)
        policy = DialPolicy(lambda: self.session.search.current.rpartition(":")[0])
        options = self.door.options
        self._meeting = Connectivity(
            [
                self.reached,
                PunchComponent(self.transport, self.reached, self.session.send, options, Random(), policy),
            ]
        )
        self.welcomed = asyncio.Event()
        self.link = LinkEnd()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.transport.start(self._took)
        self._tasks = [asyncio.create_task(self.session.run()), asyncio.create_task(self._meeting.run())]
        async with asyncio.timeout(_JOIN_S):
            await self.welcomed.wait()

    async def report_nat(self, kind: NatKind) -> None:
        """Report the kind of router; returns once the coordinator has it and our punching port (symmetric: none)."""
        self.reached.set_nat(kind)
        async with asyncio.timeout(_JOIN_S):
            while kind != "symmetric" and not self._port_known:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)
        await asyncio.sleep(_REPORT_S)

    @property
    def _port_known(self) -> bool:
        return bool(self.reached.now.punch_address or self.reached.now.punch_address_ipv6)

    async def meet(self, other: PeerId) -> None:
        """Return once there is a link to the other peer, whichever end asked for it, and a message arrived over it.

        Raises:
            RollcastError: no link could be opened.
        """
        if self.peer_id > other:
            link = await self.transport.dial(other)
            link.start(self._took(link))
        await self.link.met.wait()

    async def close(self) -> None:
        await self.transport.close()
        await self.session.close("done")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _took(self, link: Link) -> LinkEnd:
        link.send(pb.LinkMessage(want=pb.Want(version=1)))
        return self.link

    # ------------------------------------------------------------ peer.session.session.SessionListener

    def opened(self, welcome: pb.Welcome) -> None:
        self._meeting.opened(welcome)
        self.welcomed.set()

    def lost(self, reason: str) -> None:
        self._meeting.lost()

    def received(self, message: pb.CoordinatorMessage) -> None:
        self._meeting.received(message)


class LinkEnd:
    """A receiver that sets ``met`` when the first frames arrive."""

    def __init__(self) -> None:
        self.met = asyncio.Event()

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        self.met.set()

    def drained(self) -> None:
        pass

    def closed(self, reason: str, code: str) -> None:
        pass


class Punching:
    """The end of a hole that carries out orders, several tries at once."""

    def __init__(self, invite_file: Path, folder: Path) -> None:
        self._invite_file, self._folder = invite_file, folder
        self._members: dict[int, Member] = {}
        self._kind: NatKind | None = None
        self._looking = asyncio.Lock()

    async def obey(self, order: dict[str, Any]) -> None:
        number = int(order["try"])
        if order["do"] == "observe":
            member = self._members[number] = await self._joined()
            await member.report_nat(await self._router(member))
            print("observed", number, member.peer_id, 0, flush=True)
            return
        member, started_s = self._members.pop(number), time.monotonic()
        try:
            async with asyncio.timeout(float(order["deadline_s"])):
                await member.meet(PeerId(order["address"]))
            print("through", number, time.monotonic() - started_s, flush=True)
        except (RollcastError, TimeoutError):
            print("failed", number, flush=True)
        await asyncio.sleep(_REPORT_S)  # our message may still be on its way to the other end
        await member.close()

    async def _joined(self) -> Member:
        identity = Identity.generate()
        invite = await read_invite("", self._invite_file, _JOIN_S)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            member = Member(identity, await enrol(invite, identity, Path(folder), _JOIN_S))
        await member.start()
        return member

    async def _router(self, member: Member) -> NatKind:
        async with self._looking:
            if self._kind is None:
                self._kind = nat_kind(await seen_from_outside(member.door), dialled=False)
        return self._kind


def _hello() -> pb.Hello:
    none: tuple[Any, ...] = ()
    return hello_of(_CONFIG, advertise="", cores=1, accelerator=None, held_versions=none, held_leases=none)


async def _unknown_hop(_address: str) -> None:
    return None


def main(arguments: list[str]) -> None:
    configure_logging("peer", level=logging.WARNING)

    async def work() -> None:
        punching = Punching(Path(arguments[0]), Path(arguments[1]))
        print("ready", flush=True)
        await orders(punching.obey)

    asyncio.run(work())


if __name__ == "__main__":
    main(sys.argv[1:])
