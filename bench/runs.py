"""Run the whole loop as real processes, for the benchmarks that need one."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from rollcast.cli.files import load
from rollcast.cli.processes import Endpoints, Fleet
from rollcast.cli.up import new_run_folder
from rollcast.cli.up_config import UpConfig
from rollcast.cli.view import line
from rollcast.cli.watch import run_fleet


class Story:
    """A follower of a run; subclasses disturb its fleet."""

    def __init__(self) -> None:
        self.fleet: Fleet | None = None
        self._printed = ""

    def begin(self, fleet: Fleet) -> None:
        """Prepare the fleet, before any process is started."""

    def on_status(self, status: Mapping[str, Any], _ended: Mapping[str, int]) -> None:
        """Print a line at each change of phase and every 25 steps."""
        mark = f"{status['learner_phase']} {int(status['step']) // 25}"
        if mark != self._printed:
            self._printed = mark
            print(line(status), file=sys.stderr)


def run(config_path: Path, runs_folder: Path, settings: list[str], story: Story) -> dict[str, Any]:
    """Run to the end, and return the summary with ``run_folder`` added.

    Raises:
        ProcessFailed, WaitTimedOut: see run_fleet.
    """
    config = load(config_path, "up", [f'runs_folder="{runs_folder}"', "coordinator.serve.http_port=0", *settings])
    assert isinstance(config, UpConfig)
    fleet = story.fleet = Fleet(config, new_run_folder(config))
    story.begin(fleet)

    def on_start(endpoints: Endpoints) -> None:
        print(f"dashboard {endpoints.http_url}  run folder {fleet.folder.root}", file=sys.stderr)

    async def follow() -> bool:
        return await run_fleet(fleet, on_start, story.on_status, asyncio.Event())

    try:
        asyncio.run(follow())
    finally:
        fleet.kill_all()
    summary: dict[str, Any] = json.loads(fleet.folder.summary.read_text())
    return summary | {"run_folder": str(fleet.folder.root)}


def trained_twice(run_folder: Path) -> int:
    """Return the number of rollouts that entered more than one batch, counted in the ledger itself."""
    with closing(sqlite3.connect(f"file:{run_folder / 'store.sqlite'}?mode=ro", uri=True)) as database:
        (count,) = database.execute(
            "SELECT count(*) FROM (SELECT rollout_id FROM batch_rollouts GROUP BY rollout_id HAVING count(*) > 1)"
        ).fetchone()
    return int(count)


def figures_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of one run's summary, flat; ``unaccounted`` is issued - trained - open - dropped, to be 0."""
    rollouts = summary["rollouts"]
    dropped = sum(rollouts["dropped"].values())
    return {
        "reward_before": summary["reward_before"],
        "reward_after": summary["reward_after"],
        "exact_before": summary["exact_before"],
        "exact_after": summary["exact_after"],
        "warm_start_s": summary["warm_start_s"],
        "wall_s": summary["wall_s"],
        "staleness_limit": summary["staleness_limit"],
        "staleness_max_trained": summary["staleness_max_trained"],
        "peer_byte_share": summary["peer_byte_share"],
        "learner_utilisation": summary["learner_utilisation"],
        "t_bcast_p50_s": summary["t_bcast_s"]["p50"],
        "t_bcast_p95_s": summary["t_bcast_s"]["p95"],
        "rollouts_issued": rollouts["issued"],
        "rollouts_trained": rollouts["trained"],
        "rollouts_open": rollouts["open"],
        "rollouts_dropped": dropped,
        "rollouts_unaccounted": rollouts["issued"]
        - rollouts["trained"]
        - rollouts["turns"]
        - rollouts["open"]
        - dropped,
        "trained_twice": trained_twice(Path(summary["run_folder"])),
    }
