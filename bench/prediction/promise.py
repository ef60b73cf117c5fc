"""Compare what plans promise with what their runs do in the simulator, under the real cores.

The shipped plan and random pools: subsets of the shipped offers with other prices and links, and demands with other
models, groups, limits, steps and conduct. Each is planned as `rollcast capacity plan` does, and the run that the plan
promises is simulated with its lengths, groups and conduct. A run keeps ``simulated utilisation / promised``.
``dropped_error_max`` is the largest |simulated - promised| dropped share.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from statistics import median

from bench.machine import Outcome
from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.planner.plans import Plan
from capacity.questions.promise import promised
from rollcast.cli.capacity.inputs import DemandOptions, PoolOptions, scenario
from rollcast.sim.validation import validate_plan

_ROLLOUTS = (64, 96, 128)  # of a random demand's step: few workers, so that its simulation takes seconds
_TRIES = 8  # demands sampled for one random pool until one is feasible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pools", type=int, default=20, help="random pools besides the shipped plan")
    parser.add_argument("--steps", type=int, default=40, help="learner steps that are measured in each simulation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-shipped", action="store_true", help="leave the shipped plan out, the largest simulation")


def run(arguments: argparse.Namespace) -> Outcome:
    kept, dropped, words = [], [], []
    for name, made in _plans(arguments.pools, arguments.seed, shipped=not arguments.no_shipped):
        began_s = time.process_time()
        found = validate_plan(made, seed=arguments.seed, steps=arguments.steps)
        simulated, expected = found.validation.simulated, found.promised
        kept.append(simulated.utilisation / expected.utilisation if expected.utilisation > 0 else 0.0)
        dropped.append(abs(simulated.dropped_share - expected.dropped_share))
        line = (
            f"{name:<12} {_described(made)}: utilisation {expected.utilisation:.3f}/{simulated.utilisation:.3f} "
            f"dropped {expected.dropped_share:.3f}/{simulated.dropped_share:.3f} "
            f"age {expected.mean_age:.2f}/{simulated.mean_staleness:.2f}; {time.process_time() - began_s:.0f} s of CPU"
        )
        words.append(line)
        print(line, file=sys.stderr, flush=True)
    figures = {
        "kept_median": median(kept),
        "kept_worst": min(kept),
        "dropped_error_max": max(dropped),
        "plans": float(len(kept)),
    }
    return Outcome({"steps": arguments.steps, "seed": arguments.seed, "plans": words}, figures)


def _plans(pools: int, seed: int, *, shipped: bool) -> Iterator[tuple[str, Plan]]:
    if shipped:
        asked = scenario(None, None)
        yield "shipped", promised(asked.demand, asked.workers)
    for number in range(pools):
        random = Random(f"{seed} {number}")
        for _ in range(_TRIES):
            made = promised(*_random_question(random))
            if made.feasible:
                yield f"pool {number}", made
                break


def _random_question(random: Random) -> tuple[Demand, list[Worker]]:
    samples = random.choice((4, 8, 16))
    settings = {
        "rollouts_per_step": max(4 * samples, random.choice(_ROLLOUTS)),
        "samples_per_group": samples,
        "t_train_s": random.choice((30, 60, 90)),
        "staleness_limit": random.choice((4, 6, 8)),
        "publish_every_steps": random.choice((1, 1, 2)),
        "model": random.choice(("qwen3-4b", "qwen3-8b")),
        "encoding": random.choice(("delta", "delta", "keyframe")),
        "at_version_swap": random.choice(("continue", "continue", "keep", "finish")),
        "learner_upload_mbit_per_second": random.choice((1000, 5000)),
    }
    values = tuple(f"demand.{key}={value}" for key, value in settings.items())
    asked = scenario(PoolOptions(), DemandOptions(setting=values))
    offered = random.sample(list(asked.workers), random.randrange(24, 60))
    return asked.demand, [_changed(worker, random) for worker in offered]


def _changed(worker: Worker, random: Random) -> Worker:
    links = random.lognormvariate(0.0, 0.4)
    return replace(
        worker,
        usd_per_hour=worker.usd_per_hour * random.lognormvariate(0.0, 0.3),
        upload_bytes_per_second=worker.upload_bytes_per_second * links,
        download_bytes_per_second=worker.download_bytes_per_second * links,
        preemptions_per_hour=worker.preemptions_per_hour * random.lognormvariate(0.0, 0.5),
    )


def _described(made: Plan) -> str:
    demand = made.demand
    return (
        f"{len(made.chosen)} workers, R {demand.rollouts_per_step}, G {demand.conduct.samples_per_group}, "
        f"S {demand.staleness_limit}, kappa {demand.publish_every_steps}, T {demand.t_train_s:g} s, "
        f"{demand.conduct.at_version_swap}, M {demand.update_bytes / 1e9:.2g} GB, phi {demand.headroom:.2f}"
    )
