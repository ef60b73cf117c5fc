"""Run the main job with one of three peers killed half way and another joining late, and compare with a clean run.

The peer with the most leases at that moment is killed; ``rollouts_lost`` counts the rollouts that it had in flight,
which are leased again.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import runs
from bench.machine import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=Path("configs/local.toml"))
    parser.add_argument("--set", action="append", default=[], help="override a setting of the file: section.key=value")


class Churn(runs.Story):
    """A story that kills the busiest peer half way, once one has leases; peer-late joins at three fifths."""

    def __init__(self) -> None:
        super().__init__()
        self.killed_at = self.joined_at = -1
        self.late_accepted = self.held_when_killed = 0

    def on_status(self, status: Mapping[str, Any], ended: Mapping[str, int]) -> None:
        super().on_status(status, ended)
        assert self.fleet is not None
        step, steps = int(status["step"]), int(status["steps"])
        workers = [peer for peer in status["peers"] if peer["role"] == "peer"]
        busiest = max(workers, key=lambda peer: peer["open_slots"], default=None)
        if self.killed_at < 0 and step >= steps // 2 and busiest is not None and busiest["open_slots"]:
            self.killed_at, self.held_when_killed = step, int(busiest["open_slots"])
            self.fleet.kill(busiest["name"])
        if self.joined_at < 0 and step >= steps * 3 // 5:
            self.joined_at = step
            self.fleet.add_peer("peer-late")
        for peer in status["peers"]:
            if peer["name"] == "peer-late":
                self.late_accepted = int(peer["accepted"])


def run(arguments: argparse.Namespace) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="rollcast-bench-") as folder:
        clean = runs.figures_of(runs.run(arguments.config, Path(folder), arguments.set, runs.Story()))
        story = Churn()
        summary = runs.run(arguments.config, Path(folder), arguments.set, story)
        figures = runs.figures_of(summary)
    figures |= {
        "killed_at_step": story.killed_at,
        "joined_at_step": story.joined_at,
        "rollouts_lost": story.held_when_killed,
        "late_peer_accepted": story.late_accepted,
        "reward_after_clean": clean["reward_after"],
        "reward_difference": abs(figures["reward_after"] - clean["reward_after"]),
        "exact_after_clean": clean["exact_after"],
    }
    return Outcome({"config": str(arguments.config), "set": arguments.set}, figures)
