from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.longrun import command

WORDS = ["--peers", "3", "--kib", "64", "--set", "peer.link.mdns=true"]


def _arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=1.0)
    command.add_fleet_arguments(parser, interval_s=8.0)
    return parser.parse_args(words)


def test_what_was_asked_for_is_told_with_the_figures() -> None:
    asked = command.asked(_arguments(*WORDS), "hours")
    assert asked == {"hours": 1.0, "peers": 3, "interval": 8.0, "kib": 64, "set": ["peer.link.mdns=true"]}


@pytest.mark.parametrize(("p2p", "first"), [(True, ("peer.link.p2p=true",)), (False, ())])
def test_the_fleet_is_the_one_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, *, p2p: bool, first: tuple[str, ...]
) -> None:
    opened: list[tuple[int, dict[str, Any]]] = []

    @contextmanager
    def fake(peers: int, folder: Path, **shape: Any) -> Iterator[str]:
        assert folder.is_dir()
        opened.append((peers, shape))
        yield "the fleet"

    monkeypatch.setattr(command, "long_fleet", fake)
    with command.fleet_of(_arguments(*WORDS), p2p=p2p) as fleet:
        assert fleet == "the fleet"
    settings = (*first, "peer.link.mdns=true")
    assert opened == [(3, {"size_bytes": 65536, "interval_s": 8.0, "settings": settings})]
