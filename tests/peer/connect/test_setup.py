"""The parts that a configuration asks for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from peer.config import LinkConfig, PeerConfig
from peer.connect.connectivity import Connectivity
from peer.connect.setup import ConnectivityContext, connectivity_components
from peer.discovery.mdns import Mdns
from peer.port_map.component import PortMapping
from peer.reachability.advertised import AdvertisedReachability
from peer.reachability.local_address import LocalAddress
from peer.reachability.summary import ReachabilitySummary
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import RunId
from rollcast.wire.proto import rollcast_pb2 as pb


def _around(config: PeerConfig, said: list[pb.PeerMessage]) -> ConnectivityContext:
    nothing = cast(Any, SimpleNamespace())
    enrolment = SimpleNamespace(run_id=RunId("run-1"))
    return ConnectivityContext(
        config=config,
        place=cast(Any, SimpleNamespace(identity=Identity.generate(), enrolment=enrolment)),
        relay=cast(Any, SimpleNamespace(transports=SimpleNamespace(punched=None, p2p=None), keep_out=None)),
        reachability=AdvertisedReachability(said.append),
        send=said.append,
        credentials=lambda: nothing,
        http_url=lambda: "http://127.0.0.1:1",
        advertised=lambda: "",
        summary=ReachabilitySummary(),
    )


async def test_each_message_has_one_part_at_most(tmp_path: Path) -> None:
    parts = connectivity_components(_around(PeerConfig(state_folder=tmp_path), []))
    kinds = [kind for part in parts for kind in part.kinds]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) <= {one.name for one in pb.CoordinatorMessage.DESCRIPTOR.oneofs_by_name["body"].fields}
    Connectivity(parts)


async def test_routers_and_the_local_network_are_asked_only_where_the_owner_wants_it(tmp_path: Path) -> None:
    wanted = LinkConfig(host="0.0.0.0", port=7420, map_port=True, mdns=True)
    plain = {type(part) for part in connectivity_components(_around(PeerConfig(state_folder=tmp_path), []))}
    more = {type(part) for part in connectivity_components(_around(PeerConfig(state_folder=tmp_path, link=wanted), []))}
    assert more - plain == {PortMapping, Mdns, LocalAddress}  # the last wherever others can dial at all
    assert not plain - more
