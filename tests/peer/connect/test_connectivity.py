"""Test the connectivity components of a configuration: each gets its own messages, and none fails because another
does.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.config import LinkConfig, PeerConfig
from peer.connect.bans import Bans
from peer.connect.connectivity import Connectivity
from peer.connect.setup import ConnectivityContext, connectivity_components
from peer.discovery.mdns import Mdns
from peer.port_map.component import PortMapping
from peer.reachability.advertised import AdvertisedReachability
from peer.reachability.local_address import LocalAddress
from peer.reachability.summary import ReachabilitySummary
from rollcast.runtime.errors import MalformedMessage, Unreachable
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import RunId
from rollcast.wire.limits import BANNED_MAX, PEER_ID_LENGTH_MAX
from rollcast.wire.proto import rollcast_pb2 as pb


class _Part:
    def __init__(self, kind: str, error: Exception | None = None) -> None:
        self.kinds = frozenset({kind})
        self.heard: list[str] = []
        self.ended = False
        self._error = error

    async def run(self) -> None:
        try:
            if self._error is not None:
                raise self._error
            await asyncio.Event().wait()
        finally:
            self.ended = True

    def opened(self, welcome: pb.Welcome) -> None:
        self.heard.append(f"opened {welcome.run_id}")

    def lost(self) -> None:
        self.heard.append("lost")

    def received(self, message: pb.CoordinatorMessage) -> None:
        if message.punch.refused == "malformed":
            raise MalformedMessage("it is not a punch")
        self.heard.append(str(message.WhichOneof("body")))


def test_each_component_gets_the_session_and_its_own_messages() -> None:
    punching, checking = _Part("punch"), _Part("dial_back")
    meeting = Connectivity([punching, checking])
    meeting.opened(pb.Welcome(run_id="run"))
    assert meeting.received(pb.CoordinatorMessage(punch=pb.Punch(punch_id=1)))
    assert meeting.received(pb.CoordinatorMessage(dial_back=pb.DialBack(check_id=1)))
    assert not meeting.received(pb.CoordinatorMessage(stop=pb.Stop()))
    assert not meeting.received(pb.CoordinatorMessage())
    meeting.lost()
    assert punching.heard == ["opened run", "punch", "lost"]
    assert checking.heard == ["opened run", "dial_back", "lost"]


def test_a_malformed_message_raises_for_the_caller_to_drop_it() -> None:
    with pytest.raises(MalformedMessage):
        Connectivity([_Part("punch")]).received(pb.CoordinatorMessage(punch=pb.Punch(refused="malformed")))


@pytest.mark.parametrize("error", [Unreachable("no router answers"), ValueError("a fault of ours")], ids=str)
async def test_a_component_that_fails_ends_alone(error: Exception) -> None:
    failing, working = _Part("punch", error), _Part("dial_back")
    running = asyncio.create_task(Connectivity([failing, working]).run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert failing.ended
    assert not working.ended
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert working.ended


def _around(config: PeerConfig, said: list[pb.PeerMessage]) -> ConnectivityContext:
    nothing, transports = cast(Any, SimpleNamespace()), SimpleNamespace(punched=None, p2p=None)
    enrolment = SimpleNamespace(run_id=RunId("run-1"))
    return ConnectivityContext(
        config=config,
        place=cast(Any, SimpleNamespace(identity=Identity.generate(), enrolment=enrolment)),
        relay=cast(Any, SimpleNamespace(transports=transports, keep_out=None, policy=None)),
        reachability=AdvertisedReachability(said.append),
        send=said.append,
        credentials=lambda: nothing,
        http_url=lambda: "http://127.0.0.1:1",
        advertised=lambda: "",
        summary=ReachabilitySummary(),
    )


async def test_each_message_has_at_most_one_component(tmp_path: Path) -> None:
    parts = connectivity_components(_around(PeerConfig(state_folder=tmp_path), []))
    kinds = [kind for part in parts for kind in part.kinds]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) <= {one.name for one in pb.CoordinatorMessage.DESCRIPTOR.oneofs_by_name["body"].fields}
    Connectivity(parts)


async def test_port_mapping_and_mdns_need_the_owners_setting(tmp_path: Path) -> None:
    wanted = LinkConfig(host="0.0.0.0", port=7420, map_port=True, mdns=True)
    plain = {type(part) for part in connectivity_components(_around(PeerConfig(state_folder=tmp_path), []))}
    more = {type(part) for part in connectivity_components(_around(PeerConfig(state_folder=tmp_path, link=wanted), []))}
    assert more - plain == {PortMapping, Mdns, LocalAddress}  # the last wherever others can dial at all
    assert not plain - more


def message(*peer_ids: str, pardoned: tuple[str, ...] = ()) -> pb.CoordinatorMessage:
    return pb.CoordinatorMessage(banned=pb.Banned(peer_ids=peer_ids, pardoned=pardoned))


def test_changes_add_up_and_a_session_begins_anew() -> None:
    told: list[set[str]] = []
    part = Bans(lambda banned: told.append(set(banned)))
    part.opened(pb.Welcome())
    assert told == []
    part.received(message("a", "b"))
    part.received(message("c", pardoned=("a", "nobody")))
    part.received(message("c"))
    part.lost()
    assert told == [{"a", "b"}, {"b", "c"}]
    part.opened(pb.Welcome())
    assert told[2:] == [set()]


def test_oversized_bans_are_refused_and_the_set_is_bounded() -> None:
    told: list[frozenset[str]] = []
    part = Bans(told.append)
    many = tuple(f"p{number}" for number in range(BANNED_MAX))
    for wrong in (message(*many, "x"), message(pardoned=(*many, "x")), message("x" * (PEER_ID_LENGTH_MAX + 1))):
        with pytest.raises(MalformedMessage):
            part.received(wrong)
    assert told == []
    part.received(message(*many))
    part.received(message("newest"))
    assert len(told[-1]) == BANNED_MAX
    assert {"newest"} <= told[-1]
    assert "p0" not in told[-1]
