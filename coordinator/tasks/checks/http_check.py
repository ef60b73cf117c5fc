"""Have a service score completions.

    -> {"items": [{"id", "prompt", "completion", "answer", "metadata"}, ...]}
    <- {"scores": [0.5, {"format": 1.0, "correct": 0.0}, {"error": "out of memory"}, ...]}

``id`` follows from the content, so that a service may answer a repeated item from memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from blake3 import blake3

from coordinator.config.checks import HttpCheck
from coordinator.tasks.checks.checker import Checker, Item, Outcome, metadata_of
from coordinator.tasks.checks.python_check import score_of
from coordinator.tasks.checks.service import ServiceClient
from coordinator.tasks.checks.task import Problem, Score, ScoringFailure

ERROR_LENGTH_MAX = 500


class HttpChecker(Checker):
    """Sends batches of completions to a service."""

    starts_processes = True  # resolving names starts threads
    together = True

    def __init__(self, config: HttpCheck) -> None:
        self._config = config
        self._client: ServiceClient | None = None

    def warm_up(self) -> None:
        self._client = ServiceClient(self._config)
        self._client.load_secret()

    def check(self, problem: Problem, completion_text: str) -> Score:
        return check_alone(self, problem, completion_text)

    async def check_many(self, items: Sequence[Item], timeout_s: float) -> list[Outcome]:
        if self._client is None:
            self.warm_up()
        assert self._client is not None
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._client.post("", {"items": [_item(*item) for item in items]})
            return _outcomes(answer, len(items))
        except TimeoutError:
            return [ScoringFailure("timeout", f"{self._config.url} took longer than {timeout_s:g} s")] * len(items)
        except ScoringFailure as failure:
            return [failure] * len(items)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()


def check_alone(checker: Checker, problem: Problem, completion_text: str) -> Score:
    """Score one completion with a checker of batches, on an event loop of its own; for tools, not for runs."""

    async def alone() -> Outcome:
        checker.warm_up()  # connections belong to this loop
        try:
            return (await checker.check_many([(problem, completion_text)], 600.0))[0]
        finally:
            await checker.close()  # type: ignore[attr-defined]

    outcome = asyncio.run(alone())
    if isinstance(outcome, ScoringFailure):
        raise outcome
    return outcome


def _item(problem: Problem, text: str) -> dict[str, Any]:
    digest = blake3(f"{problem.to_json()}\n{text}".encode(errors="replace")).hexdigest(length=16)
    return {
        "id": digest,
        "prompt": problem.prompt,
        "completion": text,
        "answer": problem.answer,
        "metadata": metadata_of(problem),
    }


def _outcomes(answer: Any, count: int) -> list[Outcome]:
    scores = answer.get("scores") if isinstance(answer, dict) else None
    if not isinstance(scores, list) or len(scores) != count:
        raise ScoringFailure("unavailable", f'the service answered without a list "scores" of {count} entries')
    return [_outcome(one) for one in scores]


def _outcome(one: Any) -> Outcome:
    if isinstance(one, dict) and "error" in one:
        return ScoringFailure("unavailable", f"the service says: {str(one['error'])[:ERROR_LENGTH_MAX]}")
    try:
        return score_of(one)
    except (TypeError, ValueError):
        return ScoringFailure("unavailable", "the service answered with something that is no score")
