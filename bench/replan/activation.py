"""Measure whether activation settles: half of the active workers are killed, and later the rest doubles in price.

The simulator runs first, then real processes on this machine. Engines and the learner are throttled to declared rates
(bench/programs/throttled.py), so that two peers of five are enough; two of them cost less than the others.

settle_steps: learner steps from an event, or from the end of the active peers' dwell if that is later, to the last
switch that follows it; the larger of the two events. flips: switches of a peer that undo an earlier one of the same
event. utilisation_after: (train_s + behaviour_s) / (step_s - compile_s) of the learner's steps between settling and the
next event; waited_after: the share of the same time that the learner waited for rollouts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from bench import runs
from bench.machine import Outcome
from capacity.replan.events import ReplanSettings
from coordinator.core.events.operator_events import PricesChanged
from coordinator.core.events.prices import ActivationSettings, Price
from rollcast.cli.coordinator_api import Target, post
from rollcast.cli.processes import Fleet as Processes
from rollcast.sim.fleet import Fleet
from rollcast.sim.settings import FleetSettings, Lengths

PEERS, CHEAP = 5, 2
USD_PER_HOUR = (0.4, 0.5)  # price of the cheap peers, and of the others
STEP_S, TOKEN_S = 8.0, 0.4
SLOTS = 8  # slots of a peer, which makes five rollouts a second of four tokens
GROUPS, SAMPLES = 16, 4
DWELL_S, INTERVAL_S, GATHER_S = 16.0, 32.0, 0.5
KILL_AT, REPRICE_AT, STEPS = 12, 24, 38  # learner steps
_SAMPLED_EVERY_S = 0.25  # of virtual time


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch of a peer on or off, with its time in seconds of the run's clock, virtual or real."""

    at_s: float
    peer: str
    on: bool


@dataclass(frozen=True, slots=True)
class Step:
    """A learner step: its end, its duration without compiling, and how much of that it trained and waited."""

    ended_s: float
    step_s: float
    busy_s: float
    wait_s: float = 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=Path("configs/local.toml"))
    parser.add_argument("--set", action="append", default=[], help="override a setting of the file: section.key=value")
    parser.add_argument("--no-run", action="store_true", help="only the simulator")


def run(arguments: argparse.Namespace) -> Outcome:
    figures = {f"sim_{key}": value for key, value in _simulated().items()}
    if not arguments.no_run:
        figures |= _really(arguments)
    return Outcome({"config": str(arguments.config), "set": arguments.set, "step_s": STEP_S}, figures)


def judged(switches: Sequence[Switch], events: Sequence[float], steps: Sequence[Step]) -> dict[str, float]:
    """The figures. Args: events: when each of them happened, ascending; what is before the first is warm-up."""
    settle_steps, flips, busy_s, wait_s, whole_s = 0.0, 0, 0.0, 0.0, 0.0
    for number, at_s in enumerate(events):
        until_s = events[number + 1] if number + 1 < len(events) else float("inf")
        before = [one for one in switches if one.at_s <= at_s]
        after = [one for one in switches if at_s < one.at_s <= until_s]
        dwells_until_s = max((one.at_s + DWELL_S for one in before if one.on), default=at_s)
        settled_s = max((one.at_s for one in after), default=at_s)
        settle_steps = max(settle_steps, (settled_s - max(at_s, dwells_until_s)) / STEP_S)
        flips += sum(count - 1 for count in Counter(one.peer for one in after).values())
        inside = [one for one in steps if one.ended_s - one.step_s >= settled_s and one.ended_s <= until_s]
        busy_s += sum(one.busy_s for one in inside)
        wait_s += sum(one.wait_s for one in inside)
        whole_s += sum(one.step_s for one in inside)
    return {
        "settle_steps": max(0.0, settle_steps),
        "flips": flips,
        "utilisation_after": busy_s / whole_s if whole_s else 0.0,
        "waited_after": wait_s / whole_s if whole_s else 0.0,
        "switches": len(switches),
    }


def _prices(names: Sequence[str]) -> tuple[Price, ...]:
    return tuple(Price(name=name, usd_per_hour=USD_PER_HOUR[number >= CHEAP]) for number, name in enumerate(names))


# ---------------------------------------------------------------- simulated


def _simulated() -> dict[str, float]:
    names = [f"peer-{number}" for number in range(PEERS)]
    replan = ReplanSettings(dwell_s=DWELL_S, interval_s=INTERVAL_S, gather_s=GATHER_S)
    activation = ActivationSettings(mode="act", prices=_prices(names), replan=replan)
    watched = _Watched(Fleet(_fleet_settings(activation), seed=0))
    watched.until_step(KILL_AT)
    on = sorted(watched.on)
    for peer in watched.fleet.peers:
        if peer.name in on[: len(on) // 2]:
            watched.fleet.down(peer, 1e9)
    events = [watched.now]
    watched.until_step(REPRICE_AT)
    doubled = [
        replace(one, usd_per_hour=one.usd_per_hour * (1 + (one.name in watched.on))) for one in activation.prices
    ]
    watched.fleet.coordinator.apply(PricesChanged(tuple(doubled)))
    events.append(watched.now)
    watched.until_step(STEPS)
    return judged(watched.switches, events, watched.steps) | {"violations": len(watched.fleet.ground.oracle.violations)}


def _fleet_settings(activation: ActivationSettings) -> FleetSettings:
    return FleetSettings(
        peers=PEERS,
        staleness_limit=4,
        groups_per_step=GROUPS,
        samples_per_group=SAMPLES,
        concurrent_rollouts=SLOTS,
        train_s=STEP_S,
        checkpoint_every_steps=1000,
        token_s=TOKEN_S,
        speed_sigma=0.0,
        lengths=Lengths(4.0, 0.0, 4),
        verifiers=16,
        verify_s=0.02,
        activation=activation,
    )


class _Watched:
    """A simulated fleet that is sampled at regular intervals."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.switches: list[Switch] = []
        self.steps: list[Step] = []
        self.on: set[str] = set()
        self._known: dict[str, bool] = {}

    @property
    def now(self) -> float:
        return self.fleet.ground.agenda.now

    def until_step(self, step: int) -> None:
        oracle = self.fleet.ground.oracle
        while oracle.steps < step:
            done, before_s = oracle.steps, oracle.last_progress_s
            self.fleet.run(_SAMPLED_EVERY_S)
            if oracle.steps > done:
                self.steps.append(Step(oracle.last_progress_s, oracle.last_progress_s - before_s, STEP_S))
            self._record_switches()

    def _record_switches(self) -> None:
        core = self.fleet.coordinator.core
        peers = [] if core is None else [one for one in core.status(self.now).peers if one.role == "peer"]
        here = {one.name: not one.standby for one in peers if one.state not in ("left", "lost")}
        for name, is_on in here.items():
            if self._known.get(name, True) is not is_on:
                self.switches.append(Switch(self.now, name, is_on))
        self._known |= here
        self.on = {name for name, is_on in here.items() if is_on}


# ---------------------------------------------------------------- as real processes


class _Halved(runs.Story):
    """Kill half of the active peers, and later double the price of those that are active then."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[float] = []
        self._orders: set[asyncio.Task[None]] = set()

    def begin(self, fleet: Processes) -> None:
        throttled = [sys.executable, "-m", "bench.programs.throttled"]
        for number in range(1, PEERS + 1):
            fleet.programs[f"peer-{number}"] = [*throttled, str(TOKEN_S)]
        fleet.programs["learner"] = [*throttled, str(STEP_S)]

    def on_status(self, status: Mapping[str, Any], ended: Mapping[str, int]) -> None:
        super().on_status(status, ended)
        assert self.fleet is not None
        working = [one for one in status["peers"] if one["role"] == "peer" and one["state"] not in ("left", "lost")]
        on = sorted(one["name"] for one in working if not one["standby"])
        due = (KILL_AT, REPRICE_AT)[len(self.events) : len(self.events) + 1]
        if not due or int(status["step"]) < due[0]:
            return
        self.events.append(time.time())
        if due[0] == KILL_AT:
            for name in on[: len(on) // 2]:
                self.fleet.kill(name)
        else:
            prices = {one["name"]: 2.0 * float(one["usd_per_hour"]) for one in working if not one["standby"]}
            task = asyncio.get_running_loop().create_task(self._reprice(prices))
            self._orders.add(task)

    async def _reprice(self, prices: Mapping[str, float]) -> None:
        assert self.fleet is not None
        target = Target(self.fleet.folder.root)
        async with aiohttp.ClientSession() as session:
            for name, usd_per_hour in prices.items():
                values = {"name": name, "usd_per_hour": usd_per_hour}
                await post(session, target, "/api/v1/acts/price", values)


def _really(arguments: argparse.Namespace) -> dict[str, float]:
    names = [f"peer-{number}" for number in range(1, PEERS + 1)]
    prices = ", ".join(f'{{name = "{one.name}", usd_per_hour = {one.usd_per_hour}}}' for one in _prices(names))
    settings = [
        f"peers={PEERS}",
        f"coordinator.run.steps={STEPS}",
        f"coordinator.run.groups_per_step={GROUPS}",
        f"coordinator.run.samples_per_group={SAMPLES}",
        'coordinator.capacity.mode="act"',
        f"coordinator.capacity.prices=[{prices}]",
        f"coordinator.capacity.dwell_s={DWELL_S}",
        f"coordinator.capacity.interval_s={INTERVAL_S}",
        f"coordinator.capacity.gather_s={GATHER_S}",
        "coordinator.membership.heartbeat_timeout_s=3.0",
        "coordinator.held_out_problems=64",
        "learner.evaluation_problems=64",
        "learner.warm_start.steps_max=50",
        "learner.warm_start.flawed_steps=0",
        f"peer.engine.concurrent_rollouts={SLOTS}",
        *arguments.set,
    ]
    story = _Halved()
    with tempfile.TemporaryDirectory(prefix="rollcast-bench-") as folder:
        summary = runs.run(arguments.config, Path(folder), settings, story)
        with closing(sqlite3.connect(f"file:{summary['run_folder']}/store.sqlite?mode=ro", uri=True)) as ledger:
            return judged(_switches(ledger), story.events, _steps(ledger))


def _switches(ledger: sqlite3.Connection) -> list[Switch]:
    """Return the switches of the run's ledger, and print each with its reason on stderr."""
    switches = []
    for at_s, kind, peer, detail in ledger.execute(
        "SELECT at_unix_s, kind, subject, detail FROM events"
        " WHERE kind IN ('activated', 'standby', 'activation_planned', 'activation_failed') ORDER BY event_order"
    ):
        print(f"{at_s:.1f} {kind} {peer}: {detail}", file=sys.stderr)
        if kind in ("activated", "standby"):
            switches.append(Switch(at_s, peer, kind == "activated"))
    return switches


def _steps(ledger: sqlite3.Connection) -> list[Step]:
    steps = []
    for text, reported_s in ledger.execute("SELECT figures, reported_unix_s FROM steps ORDER BY step"):
        values = json.loads(text)
        busy_s = values["train_s"] + values["behaviour_s"]
        whole_s = values["step_s"] - values.get("compile_s", 0.0)
        steps.append(Step(reported_s, whole_s, busy_s, values["wait_s"]))
    return steps
