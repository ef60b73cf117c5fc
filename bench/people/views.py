"""Measure how long the views of a large fleet hold the coordinator's event loop.

A real core with ``--members`` peers is built from events, and every view is made as its route makes it: those of
``coordinator.core.status.turns`` in turns, of which the longest counts. Times are processor time, the smallest of
ROUNDS, so that other work on the machine matters little. Nothing else runs on the loop: a real block also has what
happens to come in the same turn. ``tick_ms_max`` is the longest of the core's own ticks, in which it reads the rates of
all members for a relay plan, a part of them at a time.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from statistics import median

from bench.machine import Outcome
from coordinator.api.views import to_text
from coordinator.core.core import CoordinatorCore, CoreSettings
from coordinator.core.events.events import HeartbeatReceived, PeerFacts, PeerJoined, Started, Tick
from coordinator.core.status.turns import Turns
from coordinator.http.stream import compressed, message_of
from coordinator.shell.core_settings import TICK_S
from coordinator.views.alerts import Health
from coordinator.views.registry import ViewedRun, ViewRegistry
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.rollouts import Sampling

ROUNDS = 5
TICKS = 25
PLAN_DUE_S = 5.0  # after the last of 10,000 members joined
JOIN_EVERY_S = 0.0005


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--members", type=int, default=10_000)


def run(arguments: argparse.Namespace) -> Outcome:
    core, now = _core(arguments.members)
    gc.collect()
    gc.freeze()  # as the coordinator does
    views = ViewRegistry(ViewedRun(core, lambda: now, time.time, lambda: None, lambda: Health("")))
    made: dict[str, Callable[[], Turns[object]]] = {
        "workers": views.workers,
        "broadcast": views.broadcast,
        "capacity": lambda: views.capacity(()),
        "sample": views.sample,
    }
    figures = {
        "status_ms": _at_once_ms(lambda: json.dumps(core.status(now).to_json())),
        "run_status_ms": _at_once_ms(lambda: core.run_status(now)),
        "overview_ms": _at_once_ms(lambda: compressed(message_of("overview", to_text(views.overview())))),
    }
    figures |= {f"{name}_turn_ms": min(_longest_turn_ms(view()) for _ in range(ROUNDS)) for name, view in made.items()}
    figures["turn_ms_max"] = max(figures.values())
    figures["tick_ms"], figures["tick_ms_max"] = _ticks_ms(core, now)
    return Outcome({"members": arguments.members}, figures)


def _core(members: int) -> tuple[CoordinatorCore, float]:
    """Return a core with one origin and this many peers, and its clock."""
    core, now = CoordinatorCore(_settings()), 0.0
    core.handle(Started(), now)
    names = ["origin", *(f"peer-{number:05d}" for number in range(members))]
    for name in names:
        now += JOIN_EVERY_S
        role = "origin" if name == "origin" else "peer"
        joined = PeerJoined(
            peer_id=PeerId(name),
            role=role,
            name=name,
            address=f"{name}:1",
            concurrent_rollouts=0 if role == "origin" else 16,
            hardware="cpu",
            host=name,
        )
        core.handle(joined, now)
    for number, name in enumerate(names):
        state = "idle" if number % 4 == 0 else "generating"
        core.handle(HeartbeatReceived(PeerId(name), _facts(state)), now)
    return core, now


def _ticks_ms(core: CoordinatorCore, now: float) -> tuple[float, float]:
    """Return the median and the longest time of a tick, while the members' rates are read for a relay plan."""
    took_ms = []
    core.handle(Tick(), now + PLAN_DUE_S / 2)  # which ends what began when all of them joined at once
    for number in range(TICKS):
        tick_at = now + PLAN_DUE_S + number * TICK_S
        took_ms.append(_spent_ms(lambda tick_at=tick_at: core.handle(Tick(), tick_at)))  # type: ignore[misc]
    return median(took_ms), max(took_ms)


def _settings() -> CoreSettings:
    return CoreSettings(
        run_id=RunId("views"),
        heartbeat_timeout_s=60.0,  # none is sent while the ticks are measured
        seed=0,
        steps=1000,
        staleness_limit=4,
        groups_per_step=64,
        samples_per_group=16,
        sampling=Sampling(temperature=1.0, max_new_tokens=16, stop_token_ids=(1,)),
        vocabulary_size=32,
    )


def _facts(state: str) -> PeerFacts:
    return PeerFacts(
        state=state,
        reason="a rollout of 512 tokens",
        active_version=None,
        tokens_generated=1,
        chunk_bytes_from_origin=0,
        chunk_bytes_from_peers=0,
        chunk_bytes_sent=0,
        chunks_rejected=0,
        receiving_version=None,
        receiving_chunks_have=0,
        receiving_chunks_total=0,
        tokens_per_second=100.0,
    )


def _at_once_ms(make: Callable[[], object]) -> float:
    return min(_spent_ms(make) for _ in range(ROUNDS))


def _spent_ms(make: Callable[[], object]) -> float:
    began_s = time.process_time()
    make()
    return 1e3 * (time.process_time() - began_s)


def _longest_turn_ms(turns: Turns[object]) -> float:
    """Make a view in turns, then its text, compressed, which is a turn of its own; return the longest."""
    longest_ms, ended = 0.0, False
    view: object = None
    while not ended:
        began_s = time.process_time()
        try:
            next(turns)
        except StopIteration as end:
            view, ended = end.value, True
        longest_ms = max(longest_ms, 1e3 * (time.process_time() - began_s))
    return max(longest_ms, _spent_ms(lambda: compressed(message_of("view", to_text(view)))))
