from __future__ import annotations

import pytest

from peer.links.paths import ADDRESSES_MOST, PUNCH, Paths, addresses_in, kind_of, kind_of_link
from rollcast.wire.ids import PeerId

PEER, OTHER = PeerId("a"), PeerId("b")
DIRECT, P2P = "5.5.5.1:1", "/ip4/5.5.5.1/tcp/2"
CIRCUIT = "/ip4/5.5.5.9/tcp/2/p2p/12D3relay/p2p-circuit/p2p/12D3peer"
NEAR = "10.0.0.1:1"


def test_addresses_are_split_at_spaces() -> None:
    assert addresses_in(DIRECT) == (DIRECT,)
    assert addresses_in(f"{DIRECT} {P2P} {P2P}") == (DIRECT, P2P)
    assert addresses_in(f"{P2P} {P2P}0") == (P2P, f"{P2P}0")
    assert addresses_in(f"{DIRECT} {PUNCH} {CIRCUIT}") == (DIRECT, PUNCH, CIRCUIT)
    assert addresses_in(f"{PUNCH} [2001:db8::1]:7") == (PUNCH, "[2001:db8::1]:7")
    assert len(addresses_in(" ".join(f"{P2P}{number}" for number in range(100)))) == ADDRESSES_MOST


@pytest.mark.parametrize(
    "text", ["", "/srv/my weights/model.safetensors", "https://a.example/x /ip4/1.1.1.1/tcp/1", "a:1 b"]
)
def test_a_mirrors_address_is_not_split(text: str) -> None:
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


def test_the_state_is_bounded() -> None:
    paths = Paths()
    for number in range(5000):
        paths.failed(PeerId(str(number)), DIRECT, float(number))
    assert len(paths._failed_at_s) == 4096
    assert paths.order(PeerId("4999"), [DIRECT, P2P], 5000.0) == [P2P, DIRECT]


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        (DIRECT, "direct"),
        ("a.example:7", "direct"),
        (NEAR, "lan"),
        ("[fe80::1]:1", "lan"),
        (PUNCH, "punched"),
        (P2P, "p2p"),
        (CIRCUIT, "relayed"),
        ("https://a.example/x", "mirror"),
        ("/srv/my weights", "mirror"),
    ],
)
def test_each_form_of_address_is_recognised(address: str, kind: str) -> None:
    assert kind_of(address) == kind


def test_links_have_the_kind_that_is_shown() -> None:
    assert [kind_of_link(name, False) for name in ("direct", "punched", "p2p", "relayed", "mirror")] == [
        *("direct", "punched", "p2p", "relayed", "mirror")
    ]
    assert kind_of_link("direct", True) == "lan"
    assert kind_of_link("p2p", True) == "p2p"
    assert kind_of_link("something newer", False) == "mirror"


def test_without_a_measurement_the_cheapest_path_comes_first() -> None:
    assert Paths().order(PEER, [CIRCUIT, P2P, PUNCH, DIRECT, NEAR], 0.0) == [NEAR, DIRECT, PUNCH, P2P, CIRCUIT]


def test_a_far_slower_path_comes_later_until_its_measurement_is_old() -> None:
    paths = Paths()
    paths.measured(PEER, "direct", 1e6, 0.0)
    assert paths.order(PEER, [P2P, DIRECT], 1.0) == [DIRECT, P2P], "nobody knows whether p2p is any faster"
    paths.measured(PEER, "p2p", 2e6, 0.0)
    assert paths.order(PEER, [P2P, DIRECT], 1.0) == [DIRECT, P2P], "not for what it costs"
    paths.measured(PEER, "p2p", 3e6, 0.0)
    assert paths.order(PEER, [P2P, DIRECT], 1.0) == [P2P, DIRECT]
    assert paths.order(OTHER, [P2P, DIRECT], 1.0) == [DIRECT, P2P]
    assert paths.order(PEER, [P2P, DIRECT], 1e4) == [DIRECT, P2P]


def test_better_paths_have_a_higher_value_than_the_open_link() -> None:
    paths, all_of_them = Paths(), [CIRCUIT, P2P, PUNCH, DIRECT]
    paths.failed(PEER, DIRECT, 0.0)
    assert paths.better(PEER, all_of_them, "relayed", 1.0) == [DIRECT, PUNCH, P2P]
    assert paths.better(PEER, all_of_them, "punched", 1.0) == [DIRECT]
    assert paths.better(PEER, all_of_them, "direct", 1.0) == []
    assert paths.better(PEER, [*all_of_them, NEAR], "direct", 1.0) == [NEAR]
    paths.measured(PEER, "punched", 1e6, 0.0)
    paths.measured(PEER, "relayed", 9e6, 0.0)
    assert paths.better(PEER, [CIRCUIT, PUNCH], "punched", 1.0) == [CIRCUIT]


def test_addresses_learned_elsewhere_are_tried_too() -> None:
    paths = Paths()
    paths.learn(PEER, [NEAR, "/not an address"])
    assert paths.order(PEER, [DIRECT], 0.0) == [NEAR, DIRECT]
    assert paths.order(PEER, [""], 0.0) == [NEAR]
    assert paths.order(OTHER, [DIRECT], 0.0) == [DIRECT]
    assert paths.order(PEER, ["https://a.example/x"], 0.0) == ["https://a.example/x"]
    paths.learn(PEER, [])
    assert paths.order(PEER, [DIRECT], 0.0) == [DIRECT]


def test_the_highest_recent_rate_of_a_path_counts() -> None:
    paths = Paths()
    paths.measured(PEER, "p2p", 3e6, 0.0)
    paths.measured(PEER, "direct", 1e6, 10.0)
    assert paths.order(PEER, [P2P, DIRECT], 20.0) == [P2P, DIRECT]
    paths.measured(PEER, "direct", 2e6, 30.0)
    paths.measured(PEER, "direct", 1e5, 40.0)
    assert paths.rate(PEER, "direct", 50.0) == 2e6, "others had the network meanwhile"
    assert paths.order(PEER, [P2P, DIRECT], 50.0) == [DIRECT, P2P]
    paths.measured(PEER, "direct", 1e5, 930.0)
    assert paths.rate(PEER, "direct", 931.0) == 1e5


def test_a_kind_that_became_slow_ranks_behind_those_that_were_not_tried() -> None:
    paths = Paths()
    paths.measured(PEER, "direct", 5e6, 0.0)
    assert paths.better(PEER, ["5.5.5.1:1", "punch"], "direct", 1.0) == []
    paths.slowed(PEER, "direct", 1.0)
    assert paths.rate(PEER, "direct", 1.0) == 5e5
    assert paths.better(PEER, ["5.5.5.1:1", "punch"], "direct", 1.0) == ["punch"]
    paths.slowed(PEER, "punched", 1.0)
    assert paths.rate(PEER, "punched", 1.0) == 0.0, "nothing was measured of it"
