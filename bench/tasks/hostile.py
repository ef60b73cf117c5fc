"""Have hostile programs scored beside honest ones: what they steal, and how long the others wait for them.

Every program is scored against tests of both forms: a comparison with a literal, which is decided outside the sandbox,
and one that needs a second sandbox. HOSTILE_AT_ONCE of them are in the pool at any time, which has one verifier
process and the default spares. ``delayed_s_max`` is the longest wait of an honest program for its score beside them,
less the longest without them.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from random import Random

from bench.programs.hostile_programs import HONEST, HOSTILE
from coordinator.config.checks import CodeCheck
from coordinator.config.config import VerifierConfig
from coordinator.config.tasks import JsonlTask
from coordinator.tasks.checks.task import Problem
from coordinator.verifiers.build import build_scorer
from coordinator.verifiers.scorer import Scored, ScoreItem, Scorer

HOSTILE_AT_ONCE = 3
HONEST_ALONE = 8
CHECK = CodeCheck(partial_credit=True)
TASK = JsonlTask(kind="jsonl", path=Path("never-read.jsonl"), check=CHECK)


async def figures(seed: int = 0) -> dict[str, float]:
    """Return the figures ``stolen``, ``delayed_s_max``, and the number of programs."""
    scorer, random = build_scorer(TASK, seed, VerifierConfig()), Random(seed)
    await scorer.start()
    try:
        alone_s = [await _honest(scorer, random, number) for number in range(HONEST_ALONE)]
        stolen, beside_s = await _beside_hostile(scorer, random)
    finally:
        await scorer.close()
    return {
        "programs": float(len(HOSTILE)),
        "stolen": stolen,
        "honest_alone_s_max": max(alone_s),
        "delayed_s_max": max(0.0, max(beside_s) - max(alone_s)),
    }


async def _beside_hostile(scorer: Scorer, random: Random) -> tuple[float, list[float]]:
    """Return the rewards of all hostile programs together, and the seconds of each honest one beside them."""
    places, stolen, waited_s = asyncio.Semaphore(HOSTILE_AT_ONCE), [0.0], list[float]()

    async def one(name: str, program: str, tests: list[str]) -> None:
        async with places:
            item = ScoreItem(f"{name} {tests}", _problem(tests), program)
            (verdict,) = await scorer.score([item])
            stolen[0] += verdict.score.reward if isinstance(verdict, Scored) else 0.0

    hostile = [
        asyncio.create_task(one(name, program, tests))
        for name, program in HOSTILE.items()
        for tests in _tests(random.randrange(100_000, 1_000_000))
    ]
    while not all(task.done() for task in hostile):
        waited_s.append(await _honest(scorer, random, HONEST_ALONE + len(waited_s)))
    await asyncio.gather(*hostile)
    return stolen[0], waited_s


async def _honest(scorer: Scorer, random: Random, number: int) -> float:
    """Return the seconds until an honest program has its reward of 1."""
    secret = random.randrange(100_000, 1_000_000)
    problem, program = _problem(_tests(secret)[0]), HONEST.format(secret=secret)
    began_s = time.monotonic()
    (verdict,) = await scorer.score([ScoreItem(f"honest {number}", problem, program)])
    if not isinstance(verdict, Scored) or verdict.score.reward != 1.0:
        raise AssertionError(f"an honest program was not scored: {verdict}")
    return time.monotonic() - began_s


def _tests(secret: int) -> tuple[list[str], list[str]]:
    """Return a test that compares with a literal, and one that is decided in a second sandbox."""
    return [f"assert solve(0) == {secret}"], [f"import math\nassert math.isclose(solve(0), {secret}.0)"]


def _problem(tests: list[str]) -> Problem:
    return Problem("jsonl:0", "solve", "", {"tests": {"statements": tests}})
