"""Broadcast with libtorrent, with the settings its maintainer advises for few, fast, trusted peers, in small pieces."""

from __future__ import annotations

from collections.abc import Iterator

from bench.systems import libtorrent
from bench.systems.base import Broadcast, Case


def missing() -> str:
    """Return how to install libtorrent; empty when it can be imported."""
    return libtorrent.missing()


def broadcasts(case: Case) -> Iterator[Broadcast]:
    """Yield broadcasts with the tuned profile; see bench.systems.libtorrent.broadcasts_with."""
    yield from libtorrent.broadcasts_with(case, "tuned")
