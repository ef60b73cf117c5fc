"""Simulate a rollout engine: its completions follow from seeds, its time from their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peer.worker.core.events import SliceTokens, SlotWork, VersionKey
from rollcast.sim.settings import Lengths
from rollcast.wire.ids import LeaseId, PeerId
from rollcast.wire.rollouts import Segment, turn_start
from rollcast.wire.token_ids import pack_ids

STOP_TOKEN = 1
_TOKENS = 61  # that occur; prime, so that each one comes once in as many positions
_STEP = 2654435761  # from one position to the next, modulo _TOKENS
_BACK = pow(_STEP, -1, _TOKENS)
_CYCLE = [2 + position * _STEP % _TOKENS for position in range(_TOKENS)]


def tokens_of(seed: int, start: int, end: int) -> list[int]:
    """Return the tokens of a slot's seed from position ``start`` to ``end``, the same on every peer.

    The token at a position is 2 + (seed + position * _STEP) % _TOKENS: a seed says where in the cycle it begins.
    """
    first = (seed * _BACK + start) % _TOKENS
    count = end - start
    return (_CYCLE * ((first + count) // _TOKENS + 1))[first : first + count]


@dataclass(slots=True)
class _Row:
    lease_id: LeaseId
    sample_index: int
    seed: int
    position: int
    length: int


class Engine:
    """An engine that generates batches slice by slice; a slice takes as long as its longest row.

    Args:
        token_s: seconds per token position of the whole batch.
    """

    def __init__(self, peer_id: PeerId, lengths: Lengths, token_s: float) -> None:
        self.active: VersionKey | None = None
        self.token_s = token_s
        self._peer_id = peer_id
        self._lengths = lengths
        self._rows: list[_Row] = []
        self._weights: VersionKey | None = None

    @property
    def busy(self) -> bool:
        """Return whether rollouts are in flight."""
        return bool(self._rows)

    def begin(self, work: Sequence[SlotWork]) -> None:
        """Discard the previous batch and begin a batch of these slots with the active version."""
        self._weights = self.active
        self._rows = []
        self.add(work)

    def add(self, work: Sequence[SlotWork]) -> None:
        """Add slots to the batch."""
        for item in work:
            slot = item.slot
            known = sum(segment.token_count for segment in slot.prefix)
            start = sum(segment.token_count for segment in slot.prefix[: turn_start(slot.prefix)])
            length = self._lengths.of(slot.seed + start)  # of this turn: each has another length
            length = max(known + 1, min(self._lengths.most, start + length))
            self._rows.append(_Row(item.lease.lease_id, slot.sample_index, slot.seed, known, length))

    def renew(self) -> None:
        """Continue the batch with the active version."""
        self._weights = self.active

    def slice_s(self, tokens_max: int) -> float:
        """Return how many seconds the next slice takes."""
        longest = max((row.length - row.position for row in self._rows), default=0)
        return self.token_s * max(1, min(tokens_max, longest))

    def generate(self, tokens_max: int) -> tuple[SliceTokens, ...]:
        """Generate the next slice of every row; finished rows leave the batch."""
        generated = tuple(self._generate_row(row, tokens_max) for row in self._rows)
        self._rows = [row for row in self._rows if row.position < row.length]
        return generated

    def _generate_row(self, row: _Row, tokens_max: int) -> SliceTokens:
        assert self._weights is not None
        end = min(row.length, row.position + tokens_max)
        ended, stops = end == row.length, row.length < self._lengths.most
        tokens = tokens_of(row.seed, row.position, end)
        if ended and stops:
            tokens[-1] = STOP_TOKEN
        row.position = end
        segment = Segment(
            "assistant",
            self._weights.epoch,
            self._weights.version,
            self._peer_id,
            pack_ids(tokens),
            b"\x01" * len(tokens),
        )
        reason = ("stop" if stops else "length") if ended else None
        return SliceTokens(row.lease_id, row.sample_index, segment, reason)  # type: ignore[arg-type]
