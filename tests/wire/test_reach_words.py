"""Words for ways between members."""

from __future__ import annotations

import pytest

from rollcast.wire.reach_words import PATHS, REACHABILITIES, path_of, reachability_of


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


def test_a_word_we_do_not_know_stays() -> None:
    assert path_of("carrier pigeon", lan=True) == "carrier pigeon"


def test_members() -> None:
    found = [
        reachability_of(dialable=one, punchable=other) for one, other in ((True, True), (False, True), (False, False))
    ]
    assert found == list(REACHABILITIES)
