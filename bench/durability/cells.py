"""Run the main job with all workers in cells, kill one of them on the way, and compare with one coordinator.

Every rollout that a cell holds as delivered must be in the head's ledger, and none may be trained on twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bench import runs
from bench.fleet.cells import Cell
from bench.machine import Outcome
from rollcast.cli.files import load
from rollcast.cli.processes import Endpoints, Fleet
from rollcast.cli.up import new_run_folder
from rollcast.cli.up_config import UpConfig
from rollcast.cli.watch import run_fleet

AWAY_STEPS = 3  # learner steps for which the killed cell is away


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=Path("configs/local.toml"))
    parser.add_argument("--set", action="append", default=[], help="override a setting of the file: section.key=value")
    parser.add_argument("--cells", type=int, default=2)
    parser.add_argument("--peers", type=int, default=2, help="workers in all, divided among the cells")
    parser.add_argument("--no-kill", action="store_true", help="leave every cell alone")
    parser.add_argument("--no-comparison", action="store_true", help="leave out the run of one coordinator")


def run(arguments: argparse.Namespace) -> Outcome:
    settings = [*arguments.set]
    with tempfile.TemporaryDirectory(prefix="rollcast-bench-") as folder:
        kill = not arguments.no_kill
        figures = run_cells(arguments.config, Path(folder), settings, arguments.cells, arguments.peers, kill=kill)
        if not arguments.no_comparison:
            alone = [*settings, f"peers={arguments.peers}"]
            summary = runs.run(arguments.config, Path(folder), alone, runs.Story())
            figures |= {f"one_{name}": summary[name] for name in ("reward_before", "reward_after")}
            figures |= {"one_staleness_max_trained": summary["staleness_max_trained"], "one_wall_s": summary["wall_s"]}
    named = {name: getattr(arguments, name) for name in ("cells", "peers", "no_kill")}
    return Outcome({"config": str(arguments.config), "set": settings, **named}, figures)


class CellStory(runs.Story):
    """Starts the cells with the head; kills the first once all deliver, and starts it again some steps later."""

    def __init__(self, cells: Sequence[Cell], *, kill: bool) -> None:
        super().__init__()
        self.cells = cells
        self.kill = kill
        self.killed_at: int | None = None
        self.restarted = False
        self.workers: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, _endpoints: Endpoints) -> None:
        """Start every cell; the head listens."""
        for cell in self.cells:
            cell.prepare()
            self._tasks.append(asyncio.create_task(cell.start()))

    def on_status(self, status: Mapping[str, Any], ended: Mapping[str, int]) -> None:
        """Kill the first cell and start it again, if that is wanted."""
        super().on_status(status, ended)
        for task in self._tasks:
            if task.done():
                task.result()  # raises if a cell could not be started
        members, step, first = {one["name"]: one for one in status["peers"]}, int(status["step"]), self.cells[0]
        for cell in self.cells:
            workers = members.get(cell.name, {}).get("cell_workers") or 0
            self.workers[cell.name] = max(self.workers.get(cell.name, 0), workers)
        all_deliver = all(members.get(one.name, {}).get("accepted") for one in self.cells)
        if self.kill and self.killed_at is None and step > 0 and all_deliver:
            first.kill()
            self.killed_at = step
        elif self.killed_at is not None and not self.restarted and step >= self.killed_at + AWAY_STEPS:
            self.restarted = True
            self._tasks.append(asyncio.create_task(first.start()))


def run_cells(
    config_path: Path, folder: Path, settings: Sequence[str], cells: int, peers: int, *, kill: bool
) -> dict[str, float]:
    """Run the job with its workers in cells; return the figures.

    Raises:
        ProcessFailed, WaitTimedOut: see run_fleet and Cell.start.
    """
    own = [f'runs_folder="{folder}"', "coordinator.serve.http_port=0", "peers=0", f"coordinator.join.cells_max={cells}"]
    kept = ["coordinator.store.margin_steps=100000", "coordinator.store.compaction_interval_s=1e6"]
    config = load(config_path, "up", [*settings, *own, *kept])
    assert isinstance(config, UpConfig)
    fleet = Fleet(config, new_run_folder(config))
    numbers = range(1, cells + 1)
    parts = [Cell(fleet, f"cell-{number}", len(range(number - 1, peers, cells))) for number in numbers]
    story = CellStory(parts, kill=kill)

    async def follow() -> None:
        try:
            await run_fleet(fleet, story.start, story.on_status, asyncio.Event())
        finally:
            await asyncio.gather(*(one.stop() for one in parts), return_exceptions=True)

    try:
        asyncio.run(follow())
    finally:
        fleet.kill_all()
        for one in parts:
            one.kill()
    summary = json.loads(fleet.folder.summary.read_text())
    rollouts = summary["rollouts"]
    delivered = [key for cell in parts for key in delivered_of(cell.folder.ledger)]
    return {
        "reward_before": summary["reward_before"],
        "reward_after": summary["reward_after"],
        "staleness_limit": summary["staleness_limit"],
        "staleness_max_trained": summary["staleness_max_trained"],
        "wall_s": summary["wall_s"],
        "trained": rollouts["trained"],
        "dropped": sum(rollouts["dropped"].values()),
        "open": rollouts["open"],
        "trained_twice": runs.trained_twice(fleet.folder.root),
        "delivered": len(delivered),
        "rollouts_lost": len(set(delivered) - stored_in(fleet.folder.ledger)) + sum(map(undecided_in, parts)),
        "uploaders": uploaders_of(fleet.folder.ledger),
        "cells_killed": int(story.killed_at is not None),
        "cells_restarted": int(story.restarted),
        "cell_workers": sum(story.workers.values()),
    }


def delivered_of(ledger: Path) -> list[tuple[int, int]]:
    """Return the head's lease and sample of each rollout that a cell's ledger holds as delivered."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as database:
        rows = database.execute(
            "SELECT mixture_position FROM groups JOIN attempts USING (group_id) WHERE closed_reason = 'delivered'"
        ).fetchall()
    lent = [json.loads(position) for (position,) in rows]
    return [(one["lease_id"], one["sample_index"]) for one in lent]


def stored_in(ledger: Path) -> set[tuple[int, int]]:
    """Return the lease and sample of each rollout in the head's ledger."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as database:
        return set(database.execute("SELECT lease_id, sample_index FROM rollouts").fetchall())


def uploaders_of(ledger: Path) -> int:
    """Return how many members of the head uploaded rollouts."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as database:
        (count,) = database.execute("SELECT count(DISTINCT peer_id) FROM rollouts").fetchone()
    return int(count)


def undecided_in(cell: Cell) -> int:
    """Return how many rollouts a cell acknowledged that are neither delivered nor dropped after the run's end."""
    with closing(sqlite3.connect(f"file:{cell.folder.ledger}?mode=ro", uri=True)) as database:
        (count,) = database.execute(
            "SELECT count(*) FROM rollouts JOIN attempts USING (lease_id, sample_index) WHERE state != 'dropped'"
        ).fetchone()
    return int(count)
