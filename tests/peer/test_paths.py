from __future__ import annotations

import pytest

from peer.paths import ADDRESSES_MOST, Paths, addresses_in
from rollcast.wire.ids import PeerId

PEER, OTHER = PeerId("a"), PeerId("b")
DIRECT, P2P = "10.0.0.1:1", "/ip4/10.0.0.1/tcp/2"


def test_addresses_stand_in_a_row() -> None:
    assert addresses_in(DIRECT) == (DIRECT,)
    assert addresses_in(f"{DIRECT} {P2P} {P2P}") == (DIRECT, P2P)
    assert addresses_in(f"{P2P} {P2P}0") == (P2P, f"{P2P}0")
    assert len(addresses_in(" ".join(f"{P2P}{number}" for number in range(100)))) == ADDRESSES_MOST


@pytest.mark.parametrize(
    "text", ["", "/srv/my weights/model.safetensors", "https://a.example/x /ip4/1.1.1.1/tcp/1", "a:1 b"]
)
def test_what_is_no_row_of_addresses_stays_whole(text: str) -> None:
    assert addresses_in(text) == (text,)


def test_direct_comes_first_until_it_fails_and_again_later() -> None:
    paths = Paths()
    assert paths.order(PEER, [P2P, DIRECT], 0.0) == [DIRECT, P2P]
    paths.failed(PEER, DIRECT, 10.0)
    assert paths.order(PEER, [P2P, DIRECT], 11.0) == [P2P, DIRECT]
    assert paths.order(OTHER, [P2P, DIRECT], 11.0) == [DIRECT, P2P], "it was this peer's"
    assert paths.order(PEER, [P2P, DIRECT], 310.0) == [DIRECT, P2P]


def test_where_all_failed_the_oldest_failure_is_tried_first() -> None:
    paths = Paths()
    paths.failed(PEER, DIRECT, 10.0)
    paths.failed(PEER, P2P, 20.0)
    assert paths.order(PEER, [P2P, DIRECT], 21.0) == [DIRECT, P2P]
    paths.opened(PEER, P2P)
    assert paths.order(PEER, [P2P, DIRECT], 21.0) == [P2P, DIRECT]


def test_what_is_remembered_is_bounded() -> None:
    paths = Paths()
    for number in range(5000):
        paths.failed(PeerId(str(number)), DIRECT, float(number))
    assert len(paths._failed_at_s) == 4096
    assert paths.order(PeerId("4999"), [DIRECT, P2P], 5000.0) == [P2P, DIRECT]
