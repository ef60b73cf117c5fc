"""The parts that a configuration asks for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from peer.config import PeerConfig
from peer.meeting import Meeting
from peer.meeting_parts import Around, parts_of
from peer.reachability.standing import Standing
from peer.reached import Reached
from rollcast.wire.identity import Identity
from rollcast.wire.ids import RunId
from rollcast.wire.proto import rollcast_pb2 as pb


def _around(config: PeerConfig, said: list[pb.PeerMessage]) -> Around:
    nothing = cast(Any, SimpleNamespace())
    enrolment = SimpleNamespace(run_id=RunId("run-1"))
    return Around(
        config=config,
        place=cast(Any, SimpleNamespace(identity=Identity.generate(), enrolment=enrolment)),
        relay=cast(Any, SimpleNamespace(transports=SimpleNamespace(punched=None, p2p=None))),
        reached=Reached(said.append),
        send=said.append,
        credentials=lambda: nothing,
        advertised=lambda: "",
        standing=Standing(),
    )


async def test_each_message_has_one_part_at_most(tmp_path: Path) -> None:
    parts = parts_of(_around(PeerConfig(state_folder=tmp_path), []))
    kinds = [kind for part in parts for kind in part.kinds]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) <= {one.name for one in pb.CoordinatorMessage.DESCRIPTOR.oneofs_by_name["body"].fields}
    Meeting(parts)
