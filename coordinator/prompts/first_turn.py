"""Score single completions of problems that have an environment, as evaluations send them: episodes of one turn."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from coordinator.environments.answers import EnvironmentFailed
from coordinator.environments.player import turn_of
from coordinator.environments.pool import EnvironmentPool
from coordinator.tasks.checks.task import Score
from coordinator.verifiers.scorer import DETAIL_LENGTH_MAX, Failed, Scored, ScoreItem, Scorer, Verdict
from rollcast.wire.ids import EpisodeId
from rollcast.wire.text.tool_calls import ToolFormat


class FirstTurnScorer:
    """Scores a problem with an environment by an episode whose first turn is the last one, and others with ``scorer``.

    It starts and closes both.

    ``form`` is the format of tool calls; its owner sets it once the tokenizer is known.
    """

    def __init__(self, pool: EnvironmentPool, scorer: Scorer) -> None:
        self.form: ToolFormat = "hermes"
        self._pool = pool
        self._scorer = scorer
        self._numbers = itertools.count(1)

    async def start(self) -> None:
        """Start the verifiers and the environments; see Scorer. If either does not start, the other one is stopped."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._scorer.start())
                group.create_task(self._pool.start())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def score(self, items: Sequence[ScoreItem]) -> list[Verdict]:
        """Return the verdicts in the order of the items; see Scorer."""
        played = [item for item in items if "environment" in item.problem.data]
        rest = [item for item in items if "environment" not in item.problem.data]
        verdicts = await asyncio.gather(*map(self._play, played))
        found = {one.key: one for one in (*verdicts, *(await self._scorer.score(rest) if rest else ()))}
        return [found[item.key] for item in items]

    async def close(self) -> None:
        """Stop the verifiers and the environments."""
        await asyncio.gather(self._scorer.close(), self._pool.close())

    async def _play(self, item: ScoreItem) -> Verdict:
        # Episodes of the core have positive ids.
        episode, data = EpisodeId(-next(self._numbers)), item.problem.data
        turn = turn_of(item.completion_text, self.form, last=True)
        try:
            await self._pool.open(episode, data["environment"], data["seed"])
            reply = await self._pool.step(episode, turn)
        except EnvironmentFailed as failure:
            return Failed(item.key, "exception", failure.reason[-DETAIL_LENGTH_MAX:], failure.retryable)
        finally:  # also if the learner hangs up meanwhile
            await self._pool.close_episode(episode)
        return Scored(item.key, Score(reply.reward, reply.reward >= 1.0))
