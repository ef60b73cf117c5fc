"""Measure the simulator's speed: virtual seconds per CPU second of a fleet on the time scale of real runs.

The workload: a step and a version a minute, rollouts of about a minute (log-normal, sigma 0.4), heartbeats each 10 s,
the coordinator's tick each 5 s, versions received at the time of the fluid bound. The judge sees every event.
"""

from __future__ import annotations

import argparse

from bench.machine import Outcome
from rollcast.sim.scenario import realistic
from rollcast.sim.simulation import simulate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", type=int, default=32)
    parser.add_argument("--hours", type=float, default=4.0, help="virtual hours to simulate")
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> Outcome:
    outcome = simulate(realistic(arguments.peers), arguments.seed, seconds=3600.0 * arguments.hours)
    figures = {
        "realtime_factor": outcome.realtime_factor,
        "events_per_cpu_s": outcome.core_events / outcome.cpu_s,
        "agenda_calls_per_cpu_s": outcome.agenda_calls / outcome.cpu_s,
        "cpu_s": outcome.cpu_s,
        "steps": outcome.steps,
        "checks": outcome.checks,
        "violations": len(outcome.violations),
    }
    settings = {"peers": arguments.peers, "hours": arguments.hours, "seed": arguments.seed}
    return Outcome(settings, figures)
