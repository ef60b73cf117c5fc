"""Test bench.reach.holes with two homes that dial each other at the same time, through real routers."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import pytest

from bench.reach import holes
from bench.wan import build
from bench.wan.scenarios import Nat
from rollcast.runtime.errors import ConfigError

needs_libp2p = pytest.mark.skipif(importlib.util.find_spec("libp2p") is None, reason="needs the extra p2p")
needs_network = pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())


def _arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    holes.add_arguments(parser)
    return parser.parse_args(given)


@needs_network
@pytest.mark.parametrize("method", ["tcp", "udp", pytest.param("libp2p", marks=needs_libp2p)])
def test_two_port_restricted_homes_reach_each_other(method: holes.Method) -> None:
    seconds = holes.punched(("port-restricted", "port-restricted"), holes.Tries(method, 4, 10.0, skew_s=0.3))
    assert len(seconds) == 4


@needs_network
@pytest.mark.parametrize(
    "pair",
    [
        ("symmetric", "full-cone"),
        pytest.param(("port-restricted", "port-restricted"), marks=pytest.mark.slow),
    ],
)
def test_peers_whose_dials_a_coordinator_times_have_links(pair: tuple[Nat, Nat]) -> None:
    assert len(holes.punched(pair, holes.Tries("product", 3, 10.0))) == 3


@needs_network
@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this kernel has no IPv6")
def test_over_ipv6_peers_behind_symmetric_routers_have_links() -> None:
    assert len(holes.punched(("symmetric", "symmetric"), holes.Tries("product-ipv6", 2, 10.0))) == 2


@needs_network
@pytest.mark.parametrize("pair", [("port-restricted", "symmetric"), ("symmetric", "symmetric")])
def test_a_symmetric_home_is_reached_by_no_such_router(pair: tuple[Nat, Nat]) -> None:
    assert holes.punched(pair, holes.Tries("tcp", 2, 1.5)) == []


@needs_network
@pytest.mark.slow  # it measures once more what the other tests try
def test_figures_have_the_pair_in_their_names() -> None:
    figures = holes.run(_arguments("--tries", "2", "--pair", "full-cone+symmetric")).figures
    assert figures["tcp.full-cone+symmetric.through"] == figures["udp.full-cone+symmetric.through"] == 1.0
    assert 0.0 < figures["tcp.full-cone+symmetric.median_s"] <= figures["tcp.full-cone+symmetric.max_s"]


@pytest.mark.parametrize("pair", ["full-cone", "full-cone+open", "symmetric+symmetric+symmetric"])
def test_an_unknown_pair_is_an_error_before_anything_starts(pair: str) -> None:
    with pytest.raises(ConfigError, match="no pair"):
        holes.run(_arguments("--pair", pair))
