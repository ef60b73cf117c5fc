"""Compare scoring by verifier processes with calling the same check in a loop, per core.

``math_local`` and ``code_local`` are the seconds of the loop over the seconds of a pool of one process, for the same
completions; 1.0 is the loop's own speed. ``math_ray`` and ``code_ray`` are those of one actor of a Ray cluster started
here; they need the package ray. Each figure is the best of REPEATS, because others may use the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path

from bench.machine import Outcome, alone
from coordinator.config.checks import CheckConfig, CodeCheck, MathCheck
from coordinator.config.config import VerifierConfig
from coordinator.config.tasks import JsonlTask
from coordinator.tasks.build import build_single
from coordinator.tasks.checks.task import Problem
from coordinator.verifiers.build import build_scorer
from coordinator.verifiers.scorer import Scored, ScoreItem

REPEATS = 3
MATH_ITEMS = 400
CODE_ITEMS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ray", action="store_true", help="start a Ray cluster on this machine and measure it too")


def run(arguments: argparse.Namespace) -> Outcome:
    cases: dict[str, tuple[CheckConfig, list[ScoreItem]]] = {
        "math": (MathCheck(), math_items()),
        "code": (CodeCheck(), code_items()),
    }
    pools = ["local", *(["ray"] if arguments.ray and importlib.util.find_spec("ray") else [])]
    figures: dict[str, float] = {}
    if "ray" in pools:
        # Ray ends a cluster with the thread that started it, so that is not one of an event loop.
        importlib.import_module("ray").init(address="local", num_cpus=1, log_to_driver=False)
    with alone():
        for name, (check, items) in cases.items():
            task = JsonlTask(kind="jsonl", path=Path("never-read.jsonl"), check=check)
            loop_s = min(_loop_s(task, items) for _ in range(REPEATS))
            figures[f"{name}_loop_per_s"] = len(items) / loop_s
            for pool in pools:
                config = VerifierConfig.model_validate({"pool": pool, "ray_address": "local", "spare_processes": 0})
                figures[f"{name}_{pool}"] = loop_s / asyncio.run(_pool_s(task, config, items))
    missing = () if "ray" in pools else ("math_ray", "code_ray")
    return Outcome({"ray": arguments.ray}, figures, missing)


def math_items() -> list[ScoreItem]:
    """Return answers that math-verify has to parse, half of them right, no two alike."""
    answers = [rf"The answer is $\frac{{{2 * n}}}{{{2 * n + 2 * (n % 2)}}}$." for n in range(1, MATH_ITEMS + 1)]
    return [ScoreItem(str(n), Problem(f"jsonl:{n}", "?", "1", {}), text) for n, text in enumerate(answers)]


def code_items() -> list[ScoreItem]:
    """Return right programs with a test each, which is decided outside the sandbox."""
    problem = Problem("jsonl:0", "add", "", {"tests": {"statements": ["assert add(1, 2) == 3"]}})
    return [ScoreItem(str(n), problem, f"def add(a, b): return a + b  # {n}") for n in range(CODE_ITEMS)]


def _loop_s(config: JsonlTask, items: Sequence[ScoreItem]) -> float:
    task = build_single(config, 0)
    task.warm_up()
    began_s = time.monotonic()
    for item in items:
        task.verify(item.problem, item.completion_text)
    return time.monotonic() - began_s


async def _pool_s(config: JsonlTask, pool: VerifierConfig, items: Sequence[ScoreItem]) -> float:
    scorer = build_scorer(config, 0, pool)
    await scorer.start()
    try:
        best_s = float("inf")
        for repeat in range(REPEATS):
            asked = [ScoreItem(f"{repeat} {item.key}", item.problem, item.completion_text) for item in items]
            began_s = time.monotonic()
            verdicts = await scorer.score(asked)
            best_s = min(best_s, time.monotonic() - began_s)
            if not all(isinstance(one, Scored) for one in verdicts):
                raise AssertionError("a completion was not scored")
        return best_s
    finally:
        await scorer.close()
