"""Build the scorer that the configuration names."""

from __future__ import annotations

from coordinator.config.config import VerifierConfig
from coordinator.config.tasks import TaskConfig, runs_programs
from coordinator.tasks.build import task_config_to_json
from coordinator.verifiers.jobs import BATCH_ITEMS
from coordinator.verifiers.pool import VerifierPool
from coordinator.verifiers.scorer import Scorer


def build_scorer(task: TaskConfig, seed: int, config: VerifierConfig) -> Scorer:
    """Return a scorer of this task, which its owner starts and closes."""
    programs = runs_programs(task)
    return VerifierPool(
        task_config_to_json(task),
        seed,
        config.processes + (config.spare_processes if programs else 0),
        config.timeout_s,
        config.queue_max,
        batch_items=1 if programs else BATCH_ITEMS,  # nothing waits behind a program that runs until its timeout
    )
