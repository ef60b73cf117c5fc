"""Broadcast with libtorrent, with the settings its maintainer advises for few, fast, trusted peers, in small pieces."""

from __future__ import annotations

from collections.abc import Iterator

from bench.systems import libtorrent
from bench.systems.base import Broadcast, Case


def missing() -> str:
    """See bench.systems.libtorrent."""
    return libtorrent.missing()


def broadcasts(case: Case) -> Iterator[Broadcast]:
    """See bench.systems.libtorrent."""
    yield from libtorrent.broadcasts_with(case, "tuned")
