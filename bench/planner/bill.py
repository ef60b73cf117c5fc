"""Compare the bills of Qwen3-4B and 8B, S = 6, with generating on the learner's own class of GPUs.

Pool, prices and lengths are the shipped ones; the learner is the one of the catalogue. ``saving_4b`` is the share by
which a step of the plan costs less than synchronous generation on the learner's GPUs, as ECHO-2 (arXiv 2602.02192)
compares, with workers that are rented only; ``saving_4b_async`` is against a pool of more GPUs like the learner's, and
``saving_4b_donated``, ``saving_4b_async_donated`` are with the shipped pool's donated workers. The run that each plan
promises is simulated under the real cores: ``kept_4b`` is simulated / promised utilisation of the plan with rented
workers, ``kept_4b_async`` that of the asynchronous pool, and ``saving_kept_4b`` the saving with the simulated
utilisation. ``violations_4b`` counts broken invariants.
"""

from __future__ import annotations

import argparse
import sys

from bench.machine import Outcome
from capacity.questions.bill import bill_of
from capacity.questions.comparison import Alternative, Comparison, Way, compared
from rollcast.cli.capacity.inputs import DemandOptions, scenario
from rollcast.sim.validation import Kept, validate_plan

MODELS = {"4b": "qwen3-4b", "8b": "qwen3-8b"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--staleness", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40, help="learner steps that are measured in each simulation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-simulation", action="store_true", help="leave out what the simulator keeps")


def run(arguments: argparse.Namespace) -> Outcome:
    figures: dict[str, float] = {}
    words = []
    for short, model in MODELS.items():
        asked = scenario(None, DemandOptions(model=model, staleness=arguments.staleness))
        found = compared(asked, seed=arguments.seed)
        words += [_line(found, one) for one in found.alternatives]
        figures |= savings(found, short)
        if not arguments.no_simulation:
            figures |= _kept(found, short, arguments)
    print("\n".join(words), file=sys.stderr)
    settings = {"staleness": arguments.staleness, "steps": arguments.steps, "seed": arguments.seed, "bills": words}
    return Outcome(settings, figures)


def savings(found: Comparison, short: str) -> dict[str, float]:
    """Return the savings of one model by key."""
    pairs: dict[str, tuple[Way, Way]] = {
        f"saving_{short}": ("rented", "synchronous"),
        f"saving_{short}_async": ("rented", "asynchronous"),
        f"saving_{short}_donated": ("plan", "synchronous"),
        f"saving_{short}_async_donated": ("plan", "asynchronous"),
    }
    found_savings = {key: found.saving(*pair) for key, pair in pairs.items()}
    return {key: value for key, value in found_savings.items() if value is not None}


def _kept(found: Comparison, short: str, arguments: argparse.Namespace) -> dict[str, float]:
    figures: dict[str, float] = {}
    ways: dict[Way, str] = {"rented": f"kept_{short}", "asynchronous": f"kept_{short}_async"}
    for way, key in ways.items():
        one = found.of(way)
        if one is None or one.plan is None or one.plan.expected is None:
            continue
        kept = validate_plan(one.plan, seed=arguments.seed, steps=arguments.steps)
        figures[key] = kept.validation.simulated.utilisation / one.plan.expected.utilisation
        figures[f"violations_{short}"] = figures.get(f"violations_{short}", 0.0) + kept.validation.violations
        if way == "rented":
            figures[f"saving_kept_{short}"] = _saving_kept(found, one, kept)
    return figures


def _saving_kept(found: Comparison, one: Alternative, kept: Kept) -> float:
    """Return the saving against synchronous generation at the simulated utilisation."""
    made, central = one.plan, found.of("synchronous")
    assert made is not None, "only plans are simulated"
    assert central is not None, "it needs no workers"
    utilisation = kept.validation.simulated.utilisation
    bill = bill_of(made.demand, made.workers_usd_per_hour, made.egress_usd_per_hour, utilisation)
    return 1.0 - bill.usd_per_step / central.bill.usd_per_step


def _line(found: Comparison, one: Alternative) -> str:
    return (
        f"{found.model} {one.way:<12} {one.machines}: {one.bill.usd_per_hour:.2f} $/h, step {one.step_s:.1f} s, "
        f"utilisation {one.utilisation:.3f}, {one.bill.usd_per_step:.4f} $/step"
    )
