"""Define what scores completions: the items, the verdicts, and the interface that every backend implements.

A verdict is a score or a failure, and a failure is not a reward of 0: an outage, a crashed process or an exception in a
reward function says nothing about the completion. Only what the completion itself did scores 0, such as a program that
does not end in its sandbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.tasks.checks.task import FailureReason, Problem, Score

COMPLETION_LENGTH_MAX = 1 << 20
"""Characters; a longer completion scores 0 without being read."""
TOO_LONG = Score(0.0, False, "the completion is too long")
ATTEMPTS_MAX = 3
DETAIL_LENGTH_MAX = 2000
"""Characters kept of why a verifier failed: the end of a traceback."""


@dataclass(frozen=True, slots=True)
class ScoreItem:
    """A completion to score. ``key`` names it: items with the same key get the same verdict.

    ``token_ids`` stand in place of the text, as little-endian uint32, for a scorer that decodes; empty: the text.
    """

    key: str
    problem: Problem
    completion_text: str
    token_ids: bytes = b""

    @property
    def length(self) -> int:
        """Return the characters of the text, or the bytes of the token ids."""
        return len(self.completion_text) or len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Scored:
    """The item's score."""

    key: str
    score: Score


@dataclass(frozen=True, slots=True)
class Failed:
    """The item could not be scored. ``retryable``: whether it may work next time, or elsewhere."""

    key: str
    reason: FailureReason
    detail: str = ""
    retryable: bool = True

    @property
    def words(self) -> str:
        """Return reason and detail."""
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


Verdict = Scored | Failed


class Scorer(Protocol):
    """Scores completions. Every item gets a verdict within its deadline, whatever fails."""

    @property
    def decodes(self) -> bool:
        """Whether items may have token ids in place of the text."""
        ...

    def decode_by(self, tokenizer_json: str) -> None:
        """Decode token ids by this tokenizer, the run's own, from now on; a published one is known by its folder.

        Afterwards ``decodes`` says whether the scorer does so.
        """
        ...

    async def start(self) -> None:
        """Start the workers and wait until each has loaded its task.

        Raises:
            TaskError: the task is wrong, or a worker does not start.
        """
        ...

    async def score(self, items: Sequence[ScoreItem]) -> list[Verdict]:
        """Return one verdict for each item, in their order; waits while too many items wait.

        Raises:
            TaskError: the scorer is closed, or its workers do not start any more.
        """
        ...

    def submit(self, item: ScoreItem) -> asyncio.Future[Verdict]:
        """Return the future of an item's verdict, without a task of its own; errors as in ``score``.

        Its caller must not cancel it.
        """
        ...

    async def close(self) -> None:
        """Stop the workers; items without a verdict raise TaskError."""
        ...


async def score_again(scorer: Scorer, items: Sequence[ScoreItem]) -> list[Verdict]:
    """Score items, and those that fail again, until each had ATTEMPTS_MAX attempts.

    Raises:
        TaskError: see Scorer.score.
    """
    found = {verdict.key: verdict for verdict in await scorer.score(items)}
    for _ in range(ATTEMPTS_MAX - 1):
        again = [one for one in items if isinstance(bad := found[one.key], Failed) and bad.retryable]
        if not again:
            break
        found |= {verdict.key: verdict for verdict in await scorer.score(again)}
    return [found[one.key] for one in items]
