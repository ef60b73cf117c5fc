"""Kill the coordinator for some minutes while versions are published: measure which peers hold them, and how soon.

The fleet is that of the benchmark `hour`: an origin and peers, every second one behind a router of its own. Some
versions are published while the coordinator runs; then it is killed, and restarted after ``--seconds``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from bench.longrun.churn import Act
from bench.longrun.command import add_fleet_arguments, asked, fleet_of
from bench.longrun.fleet import LongFleet
from bench.longrun.stalls import Moment, Span
from bench.machine import Outcome
from bench.wan import build

_STEP_S = 0.5
_BACK_MOST_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=300.0, help="seconds without the coordinator")
    parser.add_argument("--before", type=float, default=30.0, help="seconds with the coordinator before that")
    parser.add_argument("--last", type=float, default=30.0, help="seconds at the end for the newest versions to arrive")
    parser.add_argument("--kill", type=int, default=0, help="number of relays killed meanwhile and not restarted")
    parser.add_argument("--p2p", action="store_true", help="also use links over libp2p")
    add_fleet_arguments(parser, interval_s=10.0)


def run(arguments: argparse.Namespace) -> Outcome:
    """Measure the share of versions published meanwhile that all peers held, the slowest of them, and the reconnection.

    Raises:
        ConfigError: a setting is wrong.
        MissingExtra: see bench.wan.build.
        ProcessFailed, WaitTimedOut: something does not start, or the learner ended.
    """
    build.require()
    with fleet_of(arguments, p2p=arguments.p2p) as fleet:
        follow(fleet, arguments.before)
        fleet.act(Act("coordinator_dies", 0))
        away = Span(time.time(), time.time() + arguments.seconds)
        dying = [number for number in fleet.peers if number % 2][: arguments.kill]
        follow(fleet, arguments.seconds / 3)
        for number in dying:
            fleet.act(Act("kill", number))
        follow(fleet, away.to_s - time.time())
        fleet.act(Act("coordinator_starts", 0))
        back_s = until_back(fleet, [number for number in fleet.peers if number not in dying])
        counted = [moment for moment in fleet.published if away.from_s <= moment.at_s < away.to_s - arguments.last]
        held = [fleet.held(number) for number in fleet.peers if number not in dying]
        figures = {**arrived(counted, held, away.to_s), "back_s": back_s, "ended_by_themselves": float(len(fleet.died))}
    return Outcome(asked(arguments, "seconds", "before", "last", "kill", "p2p"), figures)


def arrived(published: Sequence[Moment], held: Sequence[Sequence[Moment]], end_s: float) -> dict[str, float]:
    """Return how versions had spread by ``end_s``; a version counts as held by a peer that holds it or a newer one.

    Args:
        held: versions that each peer held, in order of time.
    """
    slowest, waits = list[float](), list[float]()
    for moment in published:
        at_s = [_held_at(moment, one) for one in held]
        came = [max(0.0, one - moment.at_s) for one in at_s if one is not None and one <= end_s]
        waits += came
        if len(came) == len(held):
            slowest.append(max(came))
        else:
            print(f"version {moment.version}: held by {len(came)} of {len(held)}", file=sys.stderr)
    return {
        "versions": float(len(published)),
        "held_by_all_share": len(slowest) / len(published) if published else 0.0,
        "copies_share": len(waits) / (len(published) * len(held)) if published else 0.0,
        "held_median_s": statistics.median(waits) if waits else float("nan"),
        "held_by_all_median_s": statistics.median(slowest) if slowest else float("nan"),
        "held_by_all_max_s": max(slowest, default=float("nan")),
    }


def follow(fleet: LongFleet, seconds: float, done: Callable[[], bool] = lambda: False) -> float:
    """Watch the fleet for ``seconds``, or until ``done``, and return the seconds that passed.

    Raises:
        ProcessFailed: the learner ended.
    """
    begun_s = time.monotonic()
    while (passed_s := time.monotonic() - begun_s) < seconds and not done():
        fleet.watch()
        time.sleep(_STEP_S)
    return passed_s


def until_back(fleet: LongFleet, numbers: Sequence[int]) -> float:
    """Return the seconds until all of these peers have sessions again, or the time limit if they have not."""
    since_s = time.time()
    return follow(fleet, _BACK_MOST_S, lambda: all(fleet.opened_since(number, since_s) for number in numbers))


def _held_at(moment: Moment, held: Sequence[Moment]) -> float | None:
    return next((one.at_s for one in held if one.version >= moment.version), None)
