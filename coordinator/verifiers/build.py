"""Build the scorer that the configuration names."""

from __future__ import annotations

from pathlib import Path

from coordinator.config.config import VerifierConfig
from coordinator.config.tasks import TaskConfig, runs_programs
from coordinator.tasks.build import task_config_to_json
from coordinator.verifiers.jobs import BATCH_ITEMS
from coordinator.verifiers.pool import VerifierPool
from coordinator.verifiers.ray_pool import RayScorer
from coordinator.verifiers.scorer import Scorer


def build_scorer(
    task: TaskConfig, seed: int, config: VerifierConfig, *, tokenizer_folder: Path | None = None
) -> Scorer:
    """Return a scorer of this task, which its owner starts and closes.

    Args:
        tokenizer_folder: the folder of the run's published tokenizer, with which processes of this machine decode
            completions. Machines of a Ray cluster may lack it: they get text.
    """
    programs = runs_programs(task)
    # Nothing waits behind a program that runs until its timeout.
    batch_items = 1 if programs else BATCH_ITEMS
    workers = config.processes + (config.spare_processes if programs else 0)
    made_of = (task_config_to_json(task), seed, workers, config.timeout_s, config.queue_max)
    if config.pool == "ray":
        return RayScorer(*made_of, address=config.ray_address, batch_items=batch_items)
    return VerifierPool(*made_of, batch_items=batch_items, tokenizer_folder=tokenizer_folder)
