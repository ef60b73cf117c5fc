"""Test evaluations on a real coordinator: the learner's call, people's route, and `rollcast eval` beside the run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from coordinator.api.evaluations import EvaluationState
from coordinator.prompts.samples import evaluated
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.coordinator.evaluating_peer import ended, evaluate_all, published
from tests.coordinator.running import changed, running

#: So that a peer alone may hold all that a test asks for, and keeps its leases on a busy machine without a heartbeat.
LEASES = changed(lease={"evaluation_share": 1.0}, membership={"heartbeat_timeout_s": 60.0})


async def test_the_learner_gets_the_scores_of_what_peers_generated(tmp_path: Path) -> None:
    async with running(tmp_path, LEASES) as coordinator, published(coordinator) as (learner, peer, tokenizer):
        request = pb.EvaluationRequest(version=0, problems=4, samples=2, seed=3, deadline_s=60.0)
        first = await learner.stub.Evaluate(request)
        assert (first.ended, first.scored) == (False, 0)
        await evaluate_all(peer, tokenizer, 8)
        reply = await ended(learner, request)
        assert (reply.given_up, reply.scored) == ("", 8)
        assert [(one.exact, one.reward) for one in reply.scores] == [(1, 0.5)] * 4
        kept = evaluated(coordinator.folder)
        assert len(kept) == 8
        assert {(one.set, one.version) for one in kept} == {("held_out", 0)}


async def test_an_evaluation_that_cannot_be_made_is_given_up_with_its_reason(tmp_path: Path) -> None:
    async with running(tmp_path) as coordinator, published(coordinator) as (learner, _, _):
        unpublished = pb.EvaluationRequest(version=7, problems=4, samples=1, deadline_s=60.0)
        assert (await ended(learner, unpublished)).given_up == "version 7 is not published"


async def test_people_begin_an_evaluation_and_follow_it(tmp_path: Path) -> None:
    async with running(tmp_path, LEASES) as coordinator, published(coordinator) as (_, peer, tokenizer):
        key = (coordinator.folder.secrets / "operator.key").read_text().strip()
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as client:
            wanted = {"problems": 3, "samples": 2}
            async with client.post(f"{coordinator.http_url}/api/v1/acts/evaluation", json=wanted) as response:
                begun = EvaluationState.model_validate(await response.json())
            assert (begun.version, begun.ended, begun.completions) == (0, False, 6)
            await evaluate_all(peer, tokenizer, 6)
            path = f"{coordinator.http_url}/api/v1/evaluation?version=0&problems=3&samples=2"
            async with asyncio.timeout(20.0):
                state = begun
                while not state.ended:
                    async with client.get(path) as response:
                        state = EvaluationState.model_validate(await response.json())
            assert (state.given_up, state.scored, state.exact) == ("", 6, [1, 1, 1])
            async with client.get(path.replace("samples=2", "samples=9")) as response:
                assert response.status != 200
