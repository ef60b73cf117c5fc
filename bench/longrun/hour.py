"""Run an hour of churn: check that nothing grows, and that no peer goes without versions for long.

A coordinator, a learner that publishes a small version every few seconds, an origin and peers that only relay, every
second one behind a router of its own, run as processes in an emulated network with links over TLS and libp2p.
Meanwhile peers are killed, leave and join as newcomers, are frozen for a while, their libp2p threads die, and the
coordinator is killed. Half of the peers are never killed, so that their memory can be followed over the whole time.

Growth is the Theil-Sen slope an hour of a process's samples after its warm-up. A stall is the time in which a peer that
runs lacks a published version and completes none.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from random import Random

from bench.longrun.census import LEAK_PER_HOUR, WATCHED, growths, leaking
from bench.longrun.churn import Act, Churn
from bench.longrun.command import add_fleet_arguments, asked, fleet_of
from bench.longrun.fleet import LongFleet
from bench.longrun.stalls import delays_s, stalls
from bench.machine import Outcome
from bench.wan import build

HOUR_S = 3600.0
STALL_MOST_S = 30.0
_STEP_S = 1.0
_CALM_S = 45.0  # seconds without disturbances at the end, so that the last stalls can end
_WARM_UP_SHARE, _WARM_UP_MOST_S = 0.25, 900.0
_WARM_LEAST_SHARE = 0.3  # share of the run; a process that lived for less after its warm-up does not count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--every", type=float, default=20.0, help="mean seconds between two faults")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults and their times")
    parser.add_argument("--no-p2p", action="store_true", help="direct links only")
    add_fleet_arguments(parser, interval_s=8.0)


def run(arguments: argparse.Namespace) -> Outcome:
    """Run the fleet for the given time, and return growth, stalls and the number of disturbances.

    Raises:
        ConfigError: a setting is wrong.
        MissingExtra: see bench.wan.build.
        ProcessFailed, WaitTimedOut: something does not start, or the learner ended.
    """
    build.require()
    nodes = range(1, arguments.peers + 1)
    churn = Churn(
        Random(arguments.seed),
        arguments.every,
        coming_and_going=[number for number in nodes if number % 4 in (0, 1)],
        staying=[number for number in nodes if number % 4 in (2, 3)],
    )
    with fleet_of(arguments, p2p=not arguments.no_p2p) as fleet:
        begun, began_s = fleet.clock(), time.time()
        disturb(fleet, churn, arguments.hours * HOUR_S)
        ended_s = time.time()
        figures = {"cores": fleet.cores(begun), **seen(fleet, began_s, ended_s), **grown(fleet, ended_s - began_s)}
    figures |= {f"times_{name}": float(count) for name, count in sorted(churn.done.items())}
    return Outcome(asked(arguments, "hours", "every", "seed", "no_p2p"), figures)


def disturb(fleet: LongFleet, churn: Churn, seconds: float) -> None:
    """Disturb the fleet for ``seconds``, the last of them without disturbances.

    Raises:
        ProcessFailed: the learner ended.
    """
    begun_s = time.monotonic()
    while (passed_s := time.monotonic() - begun_s) < seconds:
        acts: list[Act] = churn.due(passed_s) if passed_s < seconds - _CALM_S else churn.calm()
        for act in acts:
            fleet.act(act)
        fleet.watch()
        time.sleep(_STEP_S)


def seen(fleet: LongFleet, began_s: float, ended_s: float) -> dict[str, float]:
    """Return figures of how versions arrived, and print the worst stalls."""
    found, waits = [], list[float]()
    for number in fleet.peers:
        held = fleet.held(number)
        for span in fleet.spans(number, ended_s):
            waits += delays_s(fleet.published, held, span)
            found += [(stall.seconds, number, stall) for stall in stalls(fleet.published, held, span)]
    worst = sorted(found, reverse=True, key=lambda one: one[0])
    for seconds, number, stall in worst[:5]:
        print(f"peer {number} went without for {seconds:.1f} s from {_shown(stall.from_s)}", file=sys.stderr)
    return {
        "seconds": ended_s - began_s,
        "versions": float(len(fleet.published)),
        "held_median_s": statistics.median(waits),
        "held_p99_s": statistics.quantiles(waits, n=100)[98],
        "stall_max_s": worst[0][0] if worst else 0.0,
        "stalls_over_30_s": float(sum(one[0] > STALL_MOST_S for one in worst)),
        "ended_by_themselves": float(len(fleet.died)),
    }


def grown(fleet: LongFleet, seconds: float) -> dict[str, float]:
    """Return the growth an hour of what is watched: median and worst of the peers, and of each other process."""
    warm_up_s = min(_WARM_UP_MOST_S, _WARM_UP_SHARE * seconds)
    by_name = growths(fleet.census.lives, warm_up_s=warm_up_s, warm_least_s=_WARM_LEAST_SHARE * seconds)
    figures: dict[str, float] = {}
    peers = [slopes for name, slopes in by_name.items() if name.startswith("peer-")]
    for what in WATCHED:
        values = [slopes[what] for slopes in peers if what in slopes]
        if values:
            figures[f"peer_{what}_per_hour_median"] = statistics.median(values)
            figures[f"peer_{what}_per_hour_max"] = max(values)
        for name in ("coordinator", "origin", "learner"):
            if what in by_name.get(name, {}):
                figures[f"{name}_{what}_per_hour"] = by_name[name][what]
    for name, slopes in by_name.items():
        for what in leaking(slopes):
            print(f"{name} grows: {what} by {slopes[what]:.1f} an hour (> {LEAK_PER_HOUR[what]:g})", file=sys.stderr)
    figures["processes_watched"] = float(len(by_name))
    figures["processes_leaking"] = float(sum(bool(leaking(slopes)) for slopes in by_name.values()))
    last = [life.samples[-1] for life in fleet.census.lives if life.name in by_name]
    figures["rss_mib_max"] = max((sample.rss_mib for sample in last), default=0.0)
    return figures


def _shown(at_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_s))
