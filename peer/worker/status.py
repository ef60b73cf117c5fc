"""What a worker says about itself, and how fast it draws. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from peer.worker.events import VersionKey

PeerState = Literal[
    "starting", "generating", "idle", "receiving", "standby", "resting", "paused", "finishing", "draining"
]

RATE_WINDOW_S = 10.0  # tokens per second are averaged over this long
FIRST_SLICE_TOKENS = 16  # of the first slice, before any speed is known


@dataclass(frozen=True, slots=True)
class Receiving:
    """Progress of the version that the relay is receiving."""

    version: int
    chunks_have: int
    chunks_total: int

    @property
    def in_words(self) -> str:
        """For whoever reads the peer's state."""
        return f"version {self.version}: {self.chunks_have} of {self.chunks_total} chunks"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a heartbeat says."""

    state: PeerState
    reason: str
    active: VersionKey | None
    tokens_generated: int
    tokens_per_second: float


class DrawingSpeed:
    """Tokens drawn, tokens per second lately, and how many a slice of a given time has."""

    def __init__(self, *, slice_tokens: int, slice_s: float) -> None:
        self.tokens = 0
        self._slice_tokens = slice_tokens
        self._slice_s = slice_s
        self._token_s: float | None = None
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_tokens = 0

    def drawn(self, tokens: int, token_s: float, now: float) -> None:
        """A slice gave ``tokens`` in all, and took ``token_s`` for each of the longest rollout."""
        self.tokens += tokens
        self._token_s = token_s
        self._recent.append((now, tokens))
        self._recent_tokens += tokens
        self._forget(now)

    def per_second(self, now: float) -> float:
        """Tokens per second, averaged over RATE_WINDOW_S."""
        self._forget(now)
        return self._recent_tokens / RATE_WINDOW_S

    def next_slice_tokens(self) -> int:
        """Most tokens of a rollout in the next slice, so that it ends in time at the speed of the last one."""
        if self._token_s is None:
            return min(FIRST_SLICE_TOKENS, self._slice_tokens)
        if self._token_s * self._slice_tokens <= self._slice_s:
            return self._slice_tokens
        return max(1, int(self._slice_s / self._token_s))

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - RATE_WINDOW_S:
            self._recent_tokens -= self._recent.popleft()[1]
