"""Build the scorer that the configuration names."""

from __future__ import annotations

from coordinator.config.config import VerifierConfig
from coordinator.config.tasks import TaskConfig
from coordinator.tasks.build import task_config_to_json
from coordinator.verifiers.pool import VerifierPool
from coordinator.verifiers.scorer import Scorer


def build_scorer(task: TaskConfig, seed: int, config: VerifierConfig) -> Scorer:
    """Return a scorer of this task, which its owner starts and closes."""
    return VerifierPool(task_config_to_json(task), seed, config.processes, config.timeout_s, config.queue_max)
