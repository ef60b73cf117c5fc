"""Choose the stored encodings to delete when there are too many. Pure.

States are large; the newest few serve readers and as bases of deltas. Deltas are small and are needed by peers that
follow a chain of them, so they are kept longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Versions ahead of the newest state whose deltas are kept. No chain that a peer follows is longer: a peer that lacks a
# delta of its chain needs a new state, and would otherwise keep every delta that arrives until then.
_AHEAD_MOST = 32


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits on the stored encodings.

    Args:
        keep_versions: number of newest states to keep.
        keep_deltas: number of newest versions whose deltas are kept.
        keep_bytes: limit on the bytes of states and deltas together; 0 means no limit. The newest state is kept
        whatever
            its size.
    """

    keep_versions: int
    keep_deltas: int
    keep_bytes: int


@dataclass(frozen=True, slots=True, order=True)
class Kept:
    """One encoding on disk.

    Args:
        busy: the encoding is being read or received, a state is being made from it or will be after a restart, or
            adapters need it.
        spared: other peers are fetching it, so it may be older than the kept ones, within ``keep_bytes``.
        in_memory: the state is in memory alone, where only the newest one is kept.
    """

    version: int
    encoding_id: int
    size_bytes: int
    is_state: bool
    busy: bool = False
    spared: bool = False
    in_memory: bool = False


def surplus(kept: Iterable[Kept], retention: Retention) -> list[Kept]:
    """Return the encodings to delete, oldest first; a busy one is kept and counts towards the limits."""
    ordered = sorted(kept)
    states = [one for one in ordered if one.is_state]
    versions = sorted({one.version for one in ordered})
    if not states:
        return []
    newest = states[-1]
    oldest_state = states[-retention.keep_versions :][0].version
    oldest_delta = min(versions[-retention.keep_deltas :][0], max(newest.version, versions[-_AHEAD_MOST:][0]))
    idle = [one for one in ordered if not (one.busy or one.spared)]
    gone = [
        one
        for one in idle
        if one.version < (oldest_state if one.is_state else oldest_delta) or (one.in_memory and one != newest)
    ]
    excess_bytes = sum(one.size_bytes for one in ordered) - sum(one.size_bytes for one in gone) - retention.keep_bytes
    # Old states go before deltas because they are large. Deltas ahead of the newest state are about to be used.
    for one in sorted(ordered, key=lambda one: (not one.is_state, one)):
        may_go = one not in gone and not one.busy and one.version <= newest.version and one != newest
        if retention.keep_bytes and excess_bytes > 0 and may_go:
            gone.append(one)
            excess_bytes -= one.size_bytes
    return sorted(gone)
