"""Describe a worker's state for heartbeats, and measure how fast it generates."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from peer.engines.base import Placement, Swap
from peer.worker.core.events import VersionKey

PeerState = Literal[
    "starting", "generating", "idle", "receiving", "standby", "resting", "paused", "finishing", "draining"
]

RATE_WINDOW_S = 10.0  # tokens per second are averaged over this long
FIRST_SLICE_TOKENS = 16  # tokens of the first slice, before the speed is known


@dataclass(frozen=True, slots=True)
class Receiving:
    """Progress of the version that the relay is receiving."""

    version: int
    chunks_have: int
    chunks_total: int

    @property
    def in_words(self) -> str:
        """Return the progress as text for status pages."""
        return f"version {self.version}: {self.chunks_have} of {self.chunks_total} chunks"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The worker's fields of a heartbeat."""

    state: PeerState
    reason: str
    active: VersionKey | None
    tokens_generated: int
    tokens_per_second: float
    swap: Swap | None = None  # the engine's newest exchange of weights
    placement: Placement | None = None  # where the engine has its weights


class GenerationSpeed:
    """Counts generated tokens, averages the rate, and sizes slices so that they take a given time."""

    def __init__(self, *, slice_tokens: int, slice_s: float) -> None:
        self.tokens = 0
        self._slice_tokens = slice_tokens
        self._slice_s = slice_s
        self._token_s: float | None = None
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_tokens = 0

    def count(self, tokens: int, token_s: float, now: float) -> None:
        """Count a slice's ``tokens``; it took ``token_s`` seconds for each token of its longest rollout."""
        self.tokens += tokens
        self._token_s = token_s
        self._recent.append((now, tokens))
        self._recent_tokens += tokens
        self._discard_old(now)

    def per_second(self, now: float) -> float:
        """Return the tokens per second, averaged over RATE_WINDOW_S."""
        self._discard_old(now)
        return self._recent_tokens / RATE_WINDOW_S

    def next_slice_tokens(self) -> int:
        """Return the most tokens of a rollout in the next slice, so that it ends in time at the last slice's speed."""
        if self._token_s is None:
            return min(FIRST_SLICE_TOKENS, self._slice_tokens)
        if self._token_s * self._slice_tokens <= self._slice_s:
            return self._slice_tokens
        return max(1, int(self._slice_s / self._token_s))

    def _discard_old(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - RATE_WINDOW_S:
            self._recent_tokens -= self._recent.popleft()[1]
