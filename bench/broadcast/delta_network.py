"""Compare the time of one step's delta with that of a keyframe, through the real daemons in an emulated network.

Two kinds of versions alternate: weights unrelated to those before, for which every peer needs the keyframe, and those
weights after three more steps at a learning rate of 1e-6, of which the third is measured: in training a delta follows
deltas. For the first one after a keyframe every process makes a copy of the state, in memory that it has not used yet;
``first_delta_from_freeze_s`` is its time. The learner needs new memory for the second too, and from then on writes each
state over the one before the last. The clock is that of ``bench.broadcast.broadcast``: from the
announcement to the last peer's verified copy, whose bytes are then compared with the learner's.

``delta_time_ratio_from_freeze`` adds the time before: from the beginning of the freeze to the origin's durable copy.
With ``--on-arrival`` the origin relays what still arrives, as it does by default, and the time is that from the
beginning of the freeze to the last peer's verified copy; times from the announcement mean nothing then. What the
processes write is measured by the sizes of the files that they make; ``written_ratio`` and
``learner_written_ratio_long`` are those of a store and of a learner over many steps, with the states that they copy to
disk (``bench.broadcast.materialise`` and ``bench.broadcast.retained``).

Peers reserve the disk space for a delta's result ahead of its announcement; from then on this machine needs the memory
for it (see ``bench.systems.rollcast_daemons.Daemons.populate_memory``). No other benchmark runs meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from bench.broadcast import materialise, retained
from bench.broadcast.broadcast import ended_by_sigterm, working_folder
from bench.machine import Outcome, alone
from bench.systems.base import Broadcast, Case
from bench.systems.rollcast import running
from bench.wan import build
from bench.wan.network import Sockets
from bench.wan.scenarios import Bound, Node, fluid_bound, scenario
from rollcast.runtime.errors import ProcessFailed

_MIB = 1 << 20
_ATTEMPTS_PER_RUN = 2  # pairs are repeated when the emulator was late, up to this factor altogether
_LIMIT_BOUNDS = 15.0
_ON_ARRIVAL = "origin.link.relay_on_arrival=true"
_SETTINGS = ("learner.publish.deltas=true", "learner.publish.squash_versions=0")  # no peer is ever away here


@dataclass(frozen=True, slots=True)
class Pair:
    """A keyframe, the delta that came after it, and a later one, for which all processes use the same memory again."""

    keyframe: Broadcast
    first_delta: Broadcast
    delta: Broadcast

    @property
    def valid(self) -> bool:
        """Whether the emulator kept up in both broadcasts."""
        return self.keyframe.cost.valid and self.delta.cost.valid


def run(arguments: argparse.Namespace) -> Outcome:
    """Measure ``arguments.runs`` pairs.

    Raises:
        MissingExtra: this machine cannot emulate networks.
        RollcastError: a broadcast failed, or the emulator never kept up.
    """
    build.require()
    nodes, size_bytes = some_of(scenario(arguments.scenario, arguments.scale), arguments.peers), arguments.mib * _MIB
    bound = fluid_bound(size_bytes, nodes)
    with ended_by_sigterm(), alone(), working_folder(arguments.keep) as folder:
        limit_s = max(60.0, _LIMIT_BOUNDS * bound.seconds)
        sockets = Sockets(arguments.congestion, arguments.pace)
        settings = (*_SETTINGS, _ON_ARRIVAL) if arguments.on_arrival else _SETTINGS
        case = Case(nodes, size_bytes, sockets, folder, limit_s, bound.seconds, settings=settings)
        with contextlib.closing(_pairs(case)) as pairs:
            valid, rejected = _measure(pairs, arguments.runs, bound)
    found = figures(valid, rejected, bound) | {
        "written_ratio": materialise.written_ratio(),
        "learner_written_ratio_long": retained.learner_written_ratio(),
    }
    names = ("scenario", "mib", "peers", "on_arrival", "runs", "scale", "congestion", "pace")
    return Outcome({name: getattr(arguments, name) for name in names}, found)


def figures(pairs: Sequence[Pair], rejected: int, bound: Bound) -> dict[str, float]:
    """Return medians over pairs: ratios within a pair, seconds, and the shares of processor time in them."""

    def median(values: Iterator[float]) -> float:
        return statistics.median(values)

    ratios = [pair.delta.last_s / pair.keyframe.last_s for pair in pairs]
    return {
        "delta_time_ratio": statistics.median(ratios),
        "delta_time_ratio_max": max(ratios),
        "delta_time_ratio_from_freeze": median(
            pair.delta.from_freeze_s / pair.keyframe.from_freeze_s for pair in pairs
        ),
        "step_written_ratio": median(max(_written(pair.delta, learner=False)) for pair in pairs),
        "learner_written_ratio": median(max(_written(pair.delta, learner=True)) for pair in pairs),
        "delta_bytes_ratio": median(pair.delta.cost.all_bytes / pair.keyframe.cost.all_bytes for pair in pairs),
        "delta_from_freeze_s": median(pair.delta.from_freeze_s for pair in pairs),
        "first_delta_from_freeze_s": median(pair.first_delta.from_freeze_s for pair in pairs),
        "keyframe_from_freeze_s": median(pair.keyframe.from_freeze_s for pair in pairs),
        "delta_s": median(pair.delta.last_s for pair in pairs),
        "keyframe_s": median(pair.keyframe.last_s for pair in pairs),
        "keyframe_bound_ratio": median(pair.keyframe.last_s / bound.seconds for pair in pairs),
        "delta_cpu_s": median(pair.delta.cost.cpu_s for pair in pairs),
        "delta_cpu_share": median(pair.delta.cost.cpu_share for pair in pairs),
        "keyframe_cpu_share": median(pair.keyframe.cost.cpu_share for pair in pairs),
        "late_max_ms": max(max(pair.keyframe.cost.late_max_ms, pair.delta.cost.late_max_ms) for pair in pairs),
        "runs": len(pairs),
        "runs_rejected": rejected,
    }


def some_of(nodes: Sequence[Node], peers: int) -> tuple[Node, ...]:
    """Return the source and this many receivers, taken evenly from all of them; 0: all."""
    source, *receivers = nodes
    count = peers or len(receivers)
    return (source, *(receivers[(number * len(receivers)) // count] for number in range(count)))


def _written(delta: Broadcast, *, learner: bool) -> list[float]:
    """Return the bytes that the learner, or each other process, wrote for a delta / the delta's bytes."""
    written = [count for name, count in delta.written_bytes.items() if (name == "learner") == learner]
    return [count / delta.encoding_bytes[-1] for count in written]


def _pairs(case: Case) -> Generator[Pair, None, None]:
    with running(case) as publish:
        publish("weights")
        while True:
            keyframe, first_delta, _ = publish("weights"), publish("update"), publish("update")
            yield Pair(keyframe, first_delta, publish("update"))


def _measure(pairs: Iterator[Pair], runs: int, bound: Bound) -> tuple[list[Pair], int]:
    valid: list[Pair] = []
    rejected = 0
    for pair in pairs:
        print(_line(pair, bound), file=sys.stderr)
        if pair.valid:
            valid.append(pair)
        else:
            rejected += 1
        if len(valid) >= runs or len(valid) + rejected >= runs * _ATTEMPTS_PER_RUN:
            break
    if not valid:
        raise ProcessFailed(
            f"none of the {rejected} runs counts",
            cause="the network emulator was late in each: the processor is full",
            fix="lower the rates (--scale 0.25), or stop other programs",
        )
    return valid, rejected


def _line(pair: Pair, bound: Bound) -> str:
    delta, keyframe = pair.delta, pair.keyframe
    by_node = " ".join(f"{delta.seconds[number]:.2f}" for number in sorted(delta.seconds))
    return (
        f"keyframe {keyframe.last_s:.2f} s = {keyframe.last_s / bound.seconds:.2f} x bound; delta {delta.last_s:.3f} s "
        f"= 1/{keyframe.last_s / delta.last_s:.0f}, cpu {delta.cost.cpu_s:.2f} s; each receiver: {by_node}"
        f"{'' if pair.valid else '  REJECTED'}"
    )
