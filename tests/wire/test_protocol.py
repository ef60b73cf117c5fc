"""Test rules of messages: versions of the protocol, limits on fields, names of paths between members."""

from __future__ import annotations

import pytest

from rollcast.runtime.errors import MalformedMessage, ProtocolMismatch
from rollcast.wire.checks import require
from rollcast.wire.protocol import PROTOCOL_RANGE, agree, agree_with, range_to_pb
from rollcast.wire.reach_words import PATHS, REACHABILITIES, path_of, reachability_of


@pytest.mark.parametrize(
    ("ours", "theirs", "common"), [((1, 1), (1, 1), 1), ((1, 3), (2, 5), 3), ((2, 5), (1, 3), 3), ((1, 9), (4, 4), 4)]
)
def test_the_newest_common_version_is_chosen(ours: tuple[int, int], theirs: tuple[int, int], common: int) -> None:
    assert agree(ours, theirs) == common


def test_the_older_side_is_named() -> None:
    with pytest.raises(ProtocolMismatch) as mismatch:
        agree((3, 4), (1, 2))
    assert "the other side" in mismatch.value.fix
    with pytest.raises(ProtocolMismatch) as mismatch:
        agree((1, 2), (3, 4))
    assert "this side" in mismatch.value.fix


@pytest.mark.parametrize("theirs", [(0, 0), (0, 3), (3, 1), (-1, 1)])
def test_invalid_ranges_are_refused(theirs: tuple[int, int]) -> None:
    with pytest.raises(MalformedMessage):
        agree((1, 1), theirs)


def test_we_agree_with_ourselves() -> None:
    assert agree_with(range_to_pb()) == PROTOCOL_RANGE[1]


@pytest.mark.parametrize(
    ("transport", "lan", "word"),
    [
        ("direct", False, "direct"),
        ("direct", True, "LAN"),
        ("punched", False, "hole-punched"),
        ("punched", True, "hole-punched"),
        ("p2p", False, "libp2p"),
        ("relayed", False, "relayed"),
        ("mirror", False, "mirror"),
    ],
)
def test_links(transport: str, lan: bool, word: str) -> None:
    assert path_of(transport, lan=lan) == word
    assert word in PATHS


def test_an_unknown_word_stays() -> None:
    assert path_of("carrier pigeon", lan=True) == "carrier pigeon"


def test_members() -> None:
    found = [
        reachability_of(dialable=one, punchable=other) for one, other in ((True, True), (False, True), (False, False))
    ]
    assert found == list(REACHABILITIES)


def test_a_false_condition_raises_the_problem() -> None:
    require(True, "fine")
    with pytest.raises(MalformedMessage, match="too long"):
        require(False, "too long")
