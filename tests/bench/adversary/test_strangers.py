"""Test the run with hostile peers, without its processes."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from bench.adversary.strangers import STAY_STEPS, Parade, _in_batches, _left_out, members_of


class Parading(Parade):
    def __init__(self, *kinds: str) -> None:
        super().__init__(kinds)
        self.joined: list[str] = []
        self.killed: list[str] = []
        self.fleet = self  # type: ignore[assignment]

    def _join(self, kind: str) -> None:
        self.joined.append(kind)

    def kill(self, name: str) -> None:
        assert name in members_of(self.joined[-1])
        self.killed.append(name)


def status(step: int, *peers: dict[str, Any], phase: str = "training") -> dict[str, Any]:
    return {"step": step, "steps": 100, "learner_phase": phase, "peers": peers}


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.runs.line", lambda _status: "")


def row(name: str, *, accepted: int = 0, quarantined: bool = False) -> dict[str, Any]:
    values = {"name": name, "peer_id": f"id of {name}", "accepted": accepted, "dropped": 0, "open_slots": 0}
    return values | {"quarantined": quarantined}


def test_one_attacker_at_a_time_until_it_is_convicted_or_its_turn_is_over() -> None:
    parade = Parading("canned", "forged", "late")
    parade.on_status(status(0, phase="warm_start"), {})
    assert parade.joined == []
    parade.on_status(status(1), {})
    parade.on_status(status(30), {})  # it has not joined yet
    parade.on_status(status(31, row("canned", accepted=1)), {})
    parade.on_status(status(33, row("canned", accepted=9, quarantined=True)), {})
    parade.on_status(status(34), {})
    parade.on_status(status(35, row("forged", accepted=1)), {})
    parade.on_status(status(35 + STAY_STEPS, row("forged", accepted=99)), {})
    parade.on_status(status(90), {})  # too late for another one
    assert parade.joined == ["canned", "forged"]
    assert parade.convicted == {"canned"}
    assert parade.steps == {"canned": 2, "forged": STAY_STEPS}
    assert parade.peer_ids == {"canned": ("id of canned",), "forged": ("id of forged",)}


def test_a_ring_is_convicted_once_all_of_it_is_and_framed_peers_are_counted() -> None:
    parade = Parading("copying_ring", "late")
    first, second = members_of("copying_ring")
    parade.on_status(status(1), {})
    parade.on_status(status(2, row(first, accepted=1, quarantined=True)), {})  # the other one has not joined yet
    parade.on_status(status(3, row(first, accepted=1, quarantined=True), row(second)), {})
    assert parade.killed == []
    convicted = [row(name, accepted=1, quarantined=True) for name in (first, second)]
    parade.on_status(status(5, *convicted, row("peer-1", quarantined=True), row("peer-2")), {})
    assert parade.killed == [first, second]
    assert (parade.convicted, parade.steps, parade.framed) == ({"copying_ring"}, {"copying_ring": 2}, {"peer-1"})
    assert parade.peer_ids == {"copying_ring": (f"id of {first}", f"id of {second}")}


def test_what_entered_batches_and_what_was_left_out_is_counted(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "store.sqlite") as database:
        database.execute("CREATE TABLE rollouts (rollout_id, peer_id)")
        database.execute("CREATE TABLE batch_rollouts (rollout_id)")
        database.executemany("INSERT INTO rollouts VALUES (?, ?)", [(1, "a"), (2, "a"), (3, "b")])
        database.executemany("INSERT INTO batch_rollouts VALUES (?)", [(1,), (3,)])
    assert _in_batches(tmp_path, {"canned": ["a"], "ring": ["a", "b"], "none": ["c"]}) == {
        "canned": 1,
        "ring": 2,
        "none": 0,
    }
    lines = [{"step": 1}, {"step": 2, "audit_left_out": 3}, {"step": 3, "audit_left_out": None}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    assert _left_out(tmp_path) == 3.0
