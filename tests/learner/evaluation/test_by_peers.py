from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from learner.evaluation.by_peers import PeerEvaluator, SetScores
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.proto import rollcast_pb2 as pb


async def at_once() -> None:
    """Wait for nothing."""


class Coordinator:
    """Answers requests with these replies, the last one again and again."""

    def __init__(self, *replies: pb.EvaluationReply) -> None:
        self.requests: list[pb.EvaluationRequest] = []
        self._replies = list(replies)

    async def ask(self, request: pb.EvaluationRequest) -> pb.EvaluationReply:
        self.requests.append(request)
        return self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]

    async def scores(
        self, deadline_s: float = 60.0, announced: Callable[[], Awaitable[object]] = at_once
    ) -> SetScores | None:
        evaluator = PeerEvaluator(self.ask, deadline_s, poll_s=0.0)
        return await evaluator.scores("hard", 3, announced, problems=2, samples=4, seed=9)


def done(*exact: int) -> pb.EvaluationReply:
    return pb.EvaluationReply(ended=True, scores=[pb.ProblemScore(exact=one, reward=one / 8) for one in exact])


async def test_it_asks_until_the_scores_are_there() -> None:
    coordinator = Coordinator(pb.EvaluationReply(scored=1), pb.EvaluationReply(scored=5), done(4, 0))
    assert await coordinator.scores() == SetScores([4, 0], [0.5, 0.0])
    expected = pb.EvaluationRequest(set="hard", version=3, problems=2, samples=4, seed=9, deadline_s=60.0)
    assert coordinator.requests == [expected] * 3


async def test_what_is_given_up_is_left_to_the_learner() -> None:
    given_up = Coordinator(pb.EvaluationReply(ended=True, given_up="there is no peer"))
    assert await given_up.scores() is None
    never = Coordinator(done(1, 1))
    assert await never.scores(deadline_s=0.0) is None
    assert never.requests == []


async def test_it_asks_once_the_version_is_announced() -> None:
    coordinator, announced = Coordinator(done(4, 0)), asyncio.Event()
    asking = asyncio.ensure_future(coordinator.scores(announced=announced.wait))
    for _ in range(10):
        await asyncio.sleep(0)
    assert coordinator.requests == []
    announced.set()
    assert await asking == SetScores([4, 0], [0.5, 0.0])


async def test_a_version_that_is_never_announced_is_left_to_the_learner() -> None:
    coordinator = Coordinator(done(4, 0))
    with capture_logs() as logs:
        assert await coordinator.scores(deadline_s=0.01, announced=asyncio.Event().wait) is None
    assert coordinator.requests == []
    assert logs[0]["because"] == "waited 0.01 s for version 3 to be announced, before peers evaluate it"


@pytest.mark.parametrize("reply", [done(1), done(1, 5), done()])
async def test_impossible_scores_are_refused(reply: pb.EvaluationReply) -> None:
    with pytest.raises(MalformedMessage, match="scores of"):
        await Coordinator(reply).scores()


async def test_a_coordinator_that_never_ends_it_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.evaluation.by_peers.GRACE_S", -60.0)
    assert await Coordinator(pb.EvaluationReply()).scores() is None
