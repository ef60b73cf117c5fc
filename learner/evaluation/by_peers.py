"""Have the peers evaluate a version: ask the coordinator until there are scores, or it gives up.

The coordinator keeps no evaluation over a restart. A request is its own poll, so the next one begins the evaluation
again; a learner that restarts asks again too, and gets the scores that are there already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from rollcast.runtime.errors import MalformedMessage, WaitTimedOut
from rollcast.runtime.waits import deadline
from rollcast.wire.proto import rollcast_pb2 as pb

POLL_S = 1.0  # between two requests; an evaluation takes as long as several rollouts
GRACE_S = 60.0  # beyond the deadline, for a coordinator that is away and begins again

Ask = Callable[[pb.EvaluationRequest], Awaitable[pb.EvaluationReply]]
#: Waits until the version is announced, which the coordinator and the peers must know before they evaluate it.
Announced = Callable[[], Awaitable[object]]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SetScores:
    """The scores of one set, in the order of its problems: right completions, and the mean reward of all."""

    exact: list[int]
    rewards: list[float]


class PeerEvaluator:
    """Asks for evaluations by the peers.

    Args:
        ask: sends a request to the coordinator.
        deadline_s: seconds for one evaluation, and before it for the version's announcement; 0: the peers are never
            asked.
        poll_s: seconds between two requests for the same evaluation.
    """

    def __init__(self, ask: Ask, deadline_s: float, poll_s: float = POLL_S) -> None:
        self._ask = ask
        self._deadline_s = deadline_s
        self._poll_s = poll_s

    async def scores(
        self, name: str, version: int, announced: Announced, *, problems: int, samples: int, seed: int
    ) -> SetScores | None:
        """Return the peers' scores of a version on a set; None if the learner has to sample it itself.

        Args:
            announced: the coordinator is asked once this has returned.
            problems: the number of the set's problems.
            samples: completions of each.
            seed: the seed of the noise.

        Raises:
            MalformedMessage: the coordinator sent impossible scores.
            RollcastError: the coordinator refuses the request, or stays unreachable, or the version was not published.
        """
        if not self._deadline_s:
            return None
        try:
            async with deadline(self._deadline_s, f"version {version} to be announced, before peers evaluate it"):
                await announced()
        except WaitTimedOut as late:
            _left_to_the_learner(name, version, late.what)
            return None
        request = pb.EvaluationRequest(
            set=name, version=version, problems=problems, samples=samples, seed=seed, deadline_s=self._deadline_s
        )
        reply = await self._until_ended(request)
        if reply.given_up:
            _left_to_the_learner(name, version, reply.given_up[:500])
            return None
        exact, rewards = [one.exact for one in reply.scores], [one.reward for one in reply.scores]
        if len(exact) != problems or max(exact, default=0) > samples:
            raise MalformedMessage(f"the coordinator sent scores of {len(exact)} problems instead of {problems}")
        return SetScores(exact, rewards)

    async def _until_ended(self, request: pb.EvaluationRequest) -> pb.EvaluationReply:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + self._deadline_s + GRACE_S
        while loop.time() < ends_s:
            reply = await self._ask(request)
            if reply.ended:
                return reply
            await asyncio.sleep(self._poll_s)
        return pb.EvaluationReply(ended=True, given_up="the coordinator did not end it in time")


def _left_to_the_learner(name: str, version: int, because: str) -> None:
    _log.warning("the learner evaluates itself", set=name, version=version, because=because)
