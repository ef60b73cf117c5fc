"""Run the main job with hostile peers among its peers, real processes all, and compare its reward with a clean run's.

One attacker at a time, each of another kind and with an invite of its own, joins the honest peers, until it is
convicted or was there for STAY_STEPS steps; then the next one takes its place. Within a run every kind has its turn,
and the hostile share of the fleet is always the same, except that a ring of colluders is two processes with one invite,
and is convicted once both are. The learner takes STEP_S a step, so that there is time for all kinds. No new attacker
joins in the last fifth of the run, so that the evaluation after RL measures what was trained.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bench import runs
from bench.programs.hostile_peer import KINDS, RINGS
from rollcast.cli.processes import Fleet

HONEST = "peer-"  # with which the names of honest peers begin
STAY_STEPS = 12
STEP_S = 1.5
LAST_JOIN_SHARE = 0.8
_INVITE_TIMEOUT_S = 60.0


class Parade(runs.Story):
    """A story in which one attacker after the other joins."""

    def __init__(self, kinds: Sequence[str] = KINDS) -> None:
        super().__init__()
        self._waiting = list(kinds)
        self._here = ""  # the kind whose turn it is
        self._working_since: int | None = None  # step at which its first rollout or drop was seen
        self.peer_ids: dict[str, tuple[str, ...]] = {}  # of each kind
        self.convicted: set[str] = set()
        self.framed: set[str] = set()  # honest peers that were quarantined
        self.steps: dict[str, int] = {}  # from its first rollout until it was convicted or its turn was over

    def begin(self, fleet: Fleet) -> None:
        super().begin(fleet)
        fleet.programs["learner"] = [sys.executable, "-m", "bench.programs.throttled", str(STEP_S)]

    def on_status(self, status: Mapping[str, Any], ended: Mapping[str, int]) -> None:
        super().on_status(status, ended)
        step, steps = int(status["step"]), int(status["steps"])
        self.framed |= {one["name"] for one in status["peers"] if one["quarantined"] and one["name"].startswith(HONEST)}
        if self._here:
            here = members_of(self._here)
            self._look_at([one for one in status["peers"] if one["name"] in here], step)
        elif self._waiting and status["learner_phase"] == "training" and step < LAST_JOIN_SHARE * steps:
            self._here, self._working_since = self._waiting.pop(0), None
            self._join(self._here)

    def _look_at(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        if len(rows) < len(members_of(self._here)):  # some have not joined yet, or have left
            return
        self.peer_ids[self._here] = tuple(str(row["peer_id"]) for row in rows)
        working = any(row["accepted"] or row["dropped"] or row["open_slots"] for row in rows)
        if self._working_since is None and working:
            self._working_since = step
        since, convicted = self._working_since, all(row["quarantined"] for row in rows)
        if convicted or (since is not None and step - since >= STAY_STEPS):
            if convicted:
                self.convicted.add(self._here)
            self.steps[self._here] = step - (step if since is None else since)
            assert self.fleet is not None
            for name in members_of(self._here):
                self.fleet.kill(name)
            self._here = ""

    def _join(self, kind: str) -> None:
        assert self.fleet is not None
        root, names = self.fleet.folder.root, members_of(kind)
        command = [sys.executable, "-m", "rollcast.cli.main", "invite", "--quota", str(len(names))]
        command += ["--json", "--run-folder"]
        made = subprocess.run([*command, str(root)], capture_output=True, check=True, timeout=_INVITE_TIMEOUT_S)
        invite = self.fleet.folder.secrets / f"invite-{kind}.txt"
        invite.write_text(json.loads(made.stdout)["invite"])
        for name in names:
            self.fleet.programs[name] = [sys.executable, "-m", "bench.programs.hostile_peer", kind]
            self.fleet.add_peer(name, invite)


def members_of(kind: str) -> tuple[str, ...]:
    """Return the names of the processes that work together as one attacker."""
    return (kind, *(f"{kind}-{number}" for number in range(2, RINGS.get(kind, 1) + 1)))


def hostile_percent(honest: int) -> int:
    """Return the share of one attacker of a fleet with so many honest peers, in percent."""
    return round(100.0 / (honest + 1))


def measure(config: Path, honest: int, settings: list[str], kinds: Sequence[str] = KINDS) -> dict[str, float]:
    """Return the figures of a clean run and of one with an attacker among ``honest`` + 1 peers.

    Keys end with the hostile share of the fleet in percent; ``in_batches`` counts rollouts that the learner judged.
    """
    share = hostile_percent(honest)
    settings = [*settings, f"peers={honest}"]
    with tempfile.TemporaryDirectory(prefix="rollcast-bench-") as folder:
        clean_reward = float(runs.run(config, Path(folder), settings, runs.Story())["reward_after"])
        story = Parade(kinds)
        summary = runs.run(config, Path(folder), settings, story)
        batched = _in_batches(Path(summary["run_folder"]), story.peer_ids)
        left_out = _left_out(Path(summary["run_folder"]))
    figures = {
        f"reward_clean_{share}": clean_reward,
        f"reward_attacked_{share}": float(summary["reward_after"]),
        f"reward_loss_{share}": (clean_reward - summary["reward_after"]) / clean_reward,
        f"attackers_joined_{share}": float(len(story.peer_ids)),
        f"attackers_convicted_{share}": float(len(story.convicted)),
        f"honest_quarantined_{share}": float(len(story.framed)),
        f"hostile_in_batches_{share}": float(sum(batched.values())),
        f"hostile_left_out_{share}": left_out,
    }
    for kind, steps in story.steps.items():
        figures[f"{kind}_convicted_{share}"] = float(kind in story.convicted)
        figures[f"{kind}_steps_{share}"] = float(steps)
        figures[f"{kind}_in_batches_{share}"] = float(batched.get(kind, 0))
    return figures


def _in_batches(run_folder: Path, peer_ids: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return how many rollouts of each attacker entered a batch, where the learner judged them before the gradient."""
    with closing(sqlite3.connect(f"file:{run_folder / 'store.sqlite'}?mode=ro", uri=True)) as database:
        query = "SELECT count(*) FROM batch_rollouts JOIN rollouts USING (rollout_id) WHERE peer_id = ?"
        return {
            kind: sum(database.execute(query, (one,)).fetchone()[0] for one in ids) for kind, ids in peer_ids.items()
        }


def _left_out(run_folder: Path) -> float:
    """Return how many rollouts had weight 0 because a token of theirs was beyond its bound."""
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    return float(sum(json.loads(line).get("audit_left_out", 0) or 0 for line in lines))
