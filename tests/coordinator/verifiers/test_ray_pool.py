"""Test scoring on a real Ray cluster of two nodes; skipped where ray is not installed (the extra ``ray``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.config.checks import MathCheck
from coordinator.config.config import VerifierConfig
from coordinator.config.tasks import JsonlTask
from coordinator.tasks.build import task_config_to_json
from coordinator.tasks.checks.task import Problem, Score
from coordinator.verifiers.build import build_scorer
from coordinator.verifiers.ray_pool import RayScorer
from coordinator.verifiers.scorer import Scored, ScoreItem, score_again

TASK = JsonlTask(kind="jsonl", path=Path("never-read.jsonl"), check=MathCheck())
PROBLEM = Problem("jsonl:0", "?", "1/2", {})


def test_the_configuration_selects_it() -> None:
    assert isinstance(build_scorer(TASK, 0, VerifierConfig(pool="ray")), RayScorer)


@pytest.fixture
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="ray is not installed: scoring on a cluster is not tested")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1)
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.mark.filterwarnings("ignore")
async def test_an_actor_that_dies_costs_a_retry(cluster: Any) -> None:
    import ray

    scorer = RayScorer(task_config_to_json(TASK), 0, 2, 30.0, 100, address=cluster.address, batch_items=4)
    await scorer.start()
    try:
        texts = ["0.5", "1/3"] * 10
        items = [ScoreItem(str(key), PROBLEM, text) for key, text in enumerate(texts)]
        wanted = [Scored(str(key), Score(float(text == "0.5"), text == "0.5")) for key, text in enumerate(texts)]
        assert await score_again(scorer, items) == wanted
        assert len({one["NodeID"] for one in ray.nodes() if one["Alive"]}) == 2
        ray.kill(scorer._actors[0], no_restart=False)
        assert await score_again(scorer, items) == wanted
    finally:
        await scorer.close()
