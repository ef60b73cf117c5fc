from __future__ import annotations

import pytest

from peer.connect.bans import Bans
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.limits import BANNED_MAX, PEER_ID_LENGTH_MAX
from rollcast.wire.proto import rollcast_pb2 as pb


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


def test_too_much_is_refused_and_what_is_remembered_is_bounded() -> None:
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
