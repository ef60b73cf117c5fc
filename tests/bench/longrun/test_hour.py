"""Test the command of the long run, and its figures after a few seconds of a real fleet."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.longrun import command, hour
from bench.longrun.fleet import nodes_of
from bench.wan import build

WORDS = ["--peers", "3", "--kib", "64", "--set", "peer.link.mdns=true"]


def _arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=1.0)
    command.add_fleet_arguments(parser, interval_s=8.0)
    return parser.parse_args(words)


def test_settings_are_reported_with_the_figures() -> None:
    asked = command.asked(_arguments(*WORDS), "hours")
    assert asked == {"hours": 1.0, "peers": 3, "interval": 8.0, "kib": 64, "set": ["peer.link.mdns=true"]}


@pytest.mark.parametrize(("p2p", "first"), [(True, ("peer.link.p2p=true",)), (False, ())])
def test_the_fleet_follows_its_options(monkeypatch: pytest.MonkeyPatch, *, p2p: bool, first: tuple[str, ...]) -> None:
    opened: list[tuple[int, dict[str, Any]]] = []

    @contextmanager
    def fake(peers: int, folder: Path, **shape: Any) -> Iterator[str]:
        assert folder.is_dir()
        opened.append((peers, shape))
        yield "the fleet"

    monkeypatch.setattr(command, "long_fleet", fake)
    monkeypatch.setattr(command, "host_thread_class", lambda: None)  # libp2p may be missing here
    with command.fleet_of(_arguments(*WORDS), p2p=p2p) as fleet:
        assert fleet == "the fleet"
    settings = (*first, "peer.link.mdns=true")
    assert opened == [(3, {"size_bytes": 65536, "interval_s": 8.0, "settings": settings})]


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    hour.add_arguments(parser)
    return parser.parse_args(given)


def test_every_second_home_is_behind_a_router_of_each_kind() -> None:
    origin, *homes = nodes_of(16)
    assert origin.nat is None
    assert [home.nat is not None for home in homes] == [False, True] * 8
    assert {home.nat for home in homes} == {None, "full-cone", "port-restricted", "symmetric"}


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())
def test_a_fleet_is_disturbed_and_watched(capsys: pytest.CaptureFixture[str]) -> None:
    short = ("--hours", "0.004", "--peers", "2", "--interval", "2", "--every", "3", "--no-p2p", "--kib", "64")
    figures = hour.run(arguments(*short)).figures
    assert figures["seconds"] == pytest.approx(14.4, abs=5.0)
    assert figures["versions"] >= 4
    assert figures["ended_by_themselves"] == 0
    assert figures["held_median_s"] < 5.0
    assert figures["cores"] > 0.0
