"""Choose the next of the peers that wait for work, so that each gets a share in proportion to its speed.

Stride scheduling (Waldspurger and Weihl, MIT/LCS/TM-528): each peer has a virtual time, which advances by slots / speed
with each lease, and the peer that is furthest behind is next. Idle peers come before those that only prefetch. The cost
of a choice does not grow with the number of peers. Idle peers that have more than their share of a batch come after
those that have not: they get what these leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

from rollcast.wire.ids import PeerId, Version

_OUTDATED_MAX = 64  # outdated entries that are kept beyond the number of places, so that clearing them out is rare

Rank = Literal[0, 1, 2]
"""0: idle; 1: idle, with more than its share of a batch; 2: it only prefetches."""
IDLE: Rank = 0
ABOVE_SHARE: Rank = 1
PREFETCHES: Rank = 2

_Line = tuple[Rank, Version]  # rank of its peers, and the version that they hold
_Entry = tuple[float, int, PeerId]  # virtual time, order of joining


@dataclass(slots=True)
class _Place:
    line: _Line
    entry: _Entry


class FairShare:
    """Keeps the waiting peers in lines by version, each a heap of virtual times."""

    def __init__(self) -> None:
        self._lines: dict[_Line, list[_Entry]] = {}
        self.places: dict[PeerId, _Place] = {}
        """Peers in line."""
        self._aside: dict[PeerId, Version] = {}  # too slow for the open work with this version
        self._entries = 0  # in all lines, outdated ones included
        self.clock = 0.0  # virtual time of the peer that was served last

    def wait(self, peer_id: PeerId, order: int, version: Version, virtual_time: float, *, rank: Rank) -> float:
        """Put a peer that wants slots in line; a peer that is set aside stays so until it holds another version.

        Returns its virtual time, which for a peer that was not in line is at least the clock: waiting elsewhere earns
        it no work.
        """
        if peer_id not in self.places:
            virtual_time = max(virtual_time, self.clock)
        if self._aside.get(peer_id) == version:
            return virtual_time
        self._aside.pop(peer_id, None)
        line, entry = (rank, version), (virtual_time, order, peer_id)
        place = self.places.get(peer_id)
        if place is not None and (place.line, place.entry) == (line, entry):
            return virtual_time
        self.places[peer_id] = _Place(line, entry)
        heappush(self._lines.setdefault(line, []), entry)
        self._entries += 1
        if self._entries > 2 * len(self.places) + _OUTDATED_MAX:
            self._throw_out()
        return virtual_time

    def leave(self, peer_id: PeerId) -> None:
        """Take a peer that wants no slots out of its line."""
        self.places.pop(peer_id, None)
        self._aside.pop(peer_id, None)

    def set_aside(self, peer_id: PeerId) -> None:
        """Pass the peer over until its version changes, or until ``take_set_aside``."""
        self._aside[peer_id] = self.places.pop(peer_id).line[1]

    def take_set_aside(self) -> list[PeerId]:
        """Return the peers that were set aside, which may be put in line again."""
        peers = list(self._aside)
        self._aside.clear()
        return peers

    def first(self, oldest_version: Version) -> PeerId | None:
        """Return the next peer among those that hold this version or a newer one; None if there is none."""
        best: tuple[Rank, _Entry] | None = None
        for line in list(self._lines):
            if line[1] < oldest_version:
                continue
            head = self._head(line)
            if head is not None and (best is None or (line[0], head) < best):
                best = (line[0], head)
        return None if best is None else best[1][2]

    def idle(self, oldest_version: Version, count: int) -> list[PeerId]:
        """Return some of the idle peers in line that hold this version or a newer one, ``count`` at most."""
        found: list[PeerId] = []
        for line, heap in self._lines.items():
            if line[0] == PREFETCHES or line[1] < oldest_version:
                continue
            for entry in heap[: count - len(found) + _OUTDATED_MAX]:
                place = self.places.get(entry[2])
                if len(found) < count and place is not None and (place.line, place.entry) == (line, entry):
                    found.append(entry[2])
        return found

    def served(self, peer_id: PeerId, virtual_s: float) -> float:
        """Serve a peer with work for ``virtual_s``, and return its new virtual time. It leaves its line."""
        began = max(self.clock, self.places.pop(peer_id).entry[0])
        self.clock = began
        return began + virtual_s

    def _head(self, line: _Line) -> _Entry | None:
        heap = self._lines[line]
        while heap:
            place = self.places.get(heap[0][2])
            if place is not None and place.line == line and place.entry == heap[0]:
                return heap[0]
            heappop(heap)
            self._entries -= 1
        del self._lines[line]
        return None

    def _throw_out(self) -> None:
        """Discard outdated entries that ``first`` never reaches: far back in a line, or in that of an old version."""
        self._lines, self._entries = {}, len(self.places)
        for place in self.places.values():
            heappush(self._lines.setdefault(place.line, []), place.entry)

    def validate(self) -> None:
        """Raise AssertionError when a peer waits in no line."""
        assert self._entries == sum(len(heap) for heap in self._lines.values()), "entries in lines"
        waiting = {line: set(heap) for line, heap in self._lines.items()}
        for peer_id, place in self.places.items():
            assert place.entry in waiting[place.line], f"{peer_id} waits in no line"
