"""Measure the simulator's speed: virtual seconds per CPU second of a fleet on the time scale of real runs.

The workload: a step and a version a minute, rollouts of about a minute (log-normal, sigma 0.4), heartbeats each 10 s,
the coordinator's tick each 5 s, versions received at the time of the fluid bound. The judge sees every event.
"""

from __future__ import annotations

import argparse
import json
import sys

from bench.machine import Outcome
from rollcast.sim import compiled
from rollcast.sim.parallel import documents
from rollcast.sim.scenario import realistic
from rollcast.sim.simulation import simulate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", type=int, default=32)
    parser.add_argument("--hours", type=float, default=4.0, help="virtual hours to simulate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compiled", action="store_true", help="use the cores that `make compiled` compiled")


def run(arguments: argparse.Namespace) -> Outcome:
    settings = {"peers": arguments.peers, "hours": arguments.hours, "seed": arguments.seed}
    if arguments.compiled:  # in a process of its own, as this one has imported the sources
        compiled.check()
        command = ["-m", "rollcast.sim.compiled", "run", __name__, json.dumps(settings)]
        figures = next(documents([command], 1))
    else:
        figures = measure(**settings)
    return Outcome({**settings, "compiled": arguments.compiled}, figures)


def measure(peers: int, hours: float, seed: int) -> dict[str, float]:
    """Simulate a fleet, and return the figures."""
    outcome = simulate(realistic(peers), seed, seconds=3600.0 * hours)
    return {
        "realtime_factor": outcome.realtime_factor,
        "events_per_cpu_s": outcome.core_events / outcome.cpu_s,
        "agenda_calls_per_cpu_s": outcome.agenda_calls / outcome.cpu_s,
        "cpu_s": outcome.cpu_s,
        "steps": outcome.steps,
        "checks": outcome.checks,
        "violations": len(outcome.violations),
    }


def main(settings: str) -> None:
    """Print the figures as JSON."""
    json.dump(measure(**json.loads(settings)), sys.stdout)
