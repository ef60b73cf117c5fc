"""Test the faults of a chaos run and their steps, and the check of what a run left behind."""

from __future__ import annotations

import random
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.durability import chaos
from bench.fleet.aftermath import check_run
from bench.programs.journal_peer import keep_journal
from coordinator.core.members.learner_lives import LEARNER_LIVES, LearnerLives
from coordinator.stores.sqlite import Ledger
from peer.worker.core.events import Verdict
from peer.worker.uploads import Uploader
from rollcast.cli.processes import Fleet
from rollcast.wire.ids import LeaseId
from tests.coordinator.sample_status import peer, sample_status
from tests.coordinator.stored_work import PEER, batch, close, issue, rollout, score


class Process:
    """A process that records its signals; SIGKILL and SIGTERM end it."""

    def __init__(self, sent: list[tuple[str, int]], name: str) -> None:
        self.sent, self.name, self.ended = sent, name, False

    def poll(self) -> int | None:
        return -9 if self.ended else None

    def send_signal(self, number: int) -> None:
        self.sent.append((self.name, number))
        self.ended = number in (signal.SIGKILL, signal.SIGTERM)


class OneFleet:
    """A fleet that restarts a process at once."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.config = SimpleNamespace(peers=3)
        self.programs: dict[str, list[str]] = {}
        names = ("coordinator", "learner", "origin", "peer-1", "peer-2", "peer-3")
        self.processes = {name: Process(self.sent, name) for name in names}

    def restart(self, name: str) -> None:
        self.processes[name] = Process(self.sent, name)


def test_faults_happen_once_and_stopped_processes_are_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("bench.durability.chaos.time.monotonic", lambda: now_s[0])
    story = chaos.Chaos(tmp_path, steps=40, kills=3, rng=random.Random(1))
    fleet = OneFleet()
    story.fleet = cast(Fleet, fleet)
    story.begin(story.fleet)
    assert fleet.programs["peer-2"][-1].endswith("peer-2.txt")
    peers = [peer(f"peer-{number}", open_slots=4) for number in (1, 2, 3)]
    for step in range(41):
        for _ in range(len(story.faults) + 1):
            now_s[0] += 5.0
            ended = {name: -9 for name, process in fleet.processes.items() if process.ended}
            phase = {0: "warm_start", 40: "finished"}.get(step, "training")
            story.on_status(sample_status(step=step, steps=40, peers=peers, learner_phase=phase), ended)
            for name in {"coordinator", "learner", "origin"} & set(ended):
                fleet.restart(name)
    assert story.faults == []
    kills = [name for name, number in fleet.sent if number == signal.SIGKILL]
    assert sorted(kills) == ["coordinator"] * 5 + ["learner", "origin", "peer-3"]
    others = [one for one in fleet.sent if one[1] != signal.SIGKILL]
    assert sorted(others) == [("peer-1", signal.SIGTERM), ("peer-2", signal.SIGCONT), ("peer-2", signal.SIGSTOP)]
    assert not any(fleet.processes[name].ended for name in ("peer-1", "peer-2", "peer-3"))


async def test_a_peer_records_its_acknowledged_rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def upload(_uploader: Uploader, _rollouts: Any) -> tuple[Verdict, ...]:
        return (
            Verdict(LeaseId(7), 0, True, ""),
            Verdict(LeaseId(7), 1, False, "fenced"),
            Verdict(LeaseId(8), 0, True, ""),
            Verdict(LeaseId(9), 0, True, ""),
        )

    monkeypatch.setattr(Uploader, "upload", upload)
    keep_journal(tmp_path / "journal")
    groups = {7: 1, 8: 1, 9: 0}  # lease 9 is an evaluation's
    rollouts = [rollout(lease, group_id=group) for lease, group in groups.items()]
    assert len(await Uploader(lambda: None).upload(rollouts)) == 4
    assert (tmp_path / "journal").read_text() == "7 0\n8 0\n"


@pytest.fixture
async def run_folder(tmp_path: Path) -> Path:
    """Return a run with two batches of one rollout each and an expired lease; both rollouts were acknowledged."""
    ledger = Ledger.open(tmp_path / "store.sqlite")
    await score(ledger, 1, 2)
    await issue(ledger, 3)
    await ledger.close_attempt(close(3, "lease_expired"))
    for step, rollout_id in enumerate((1, 2)):
        await ledger.record_batch(batch(step, rollout_id))
    await ledger.record_event("peer_joined", PEER, "peer-3 as peer", cause=f"peer {PEER}")
    lives = LearnerLives()
    lives.observe({"life_began_unix_s": 1_000.0, "life_s": 40.0, "life_starting_s": 40.0})
    lives.observe({"life_began_unix_s": 1_050.0, "life_s": 10.0, "life_replay_s": 10.0})
    await ledger.set_meta(LEARNER_LIVES, lives.to_json())
    await ledger.close()
    (tmp_path / "journal").write_text("1 0\n2 0\n")
    return tmp_path


def seen(folder: Path) -> dict[str, float]:
    return check_run(folder, [folder / "journal"], killed="peer-3")


async def test_an_intact_run_passes_the_check(run_folder: Path) -> None:
    found = seen(run_folder)
    assert (found["acked"], found["acked_lost"], found["stored_unacknowledged"]) == (2, 0, 0)
    assert (found["batches"], found["trained"], found["trained_twice"], found["unaccounted"]) == (2, 2, 0, 0)
    assert (found["expired"], found["stories_missing"], found["epochs"], found["lives"]) == (1, 0, 0, 0)
    assert (round(found["unaccounted_share"], 9), round(found["away_share"], 3)) == (0.0, 0.167)


async def test_lost_and_open_rollouts_are_found(run_folder: Path) -> None:
    (run_folder / "journal").write_text("1 0\n2 0\n9 4\n")
    with closing(sqlite3.connect(run_folder / "store.sqlite")) as connection, connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE attempts SET state = 'filled', closed_reason = NULL")
        connection.execute("DELETE FROM events")
    found = seen(run_folder)
    assert (found["acked_lost"], found["unaccounted"], found["stories_missing"]) == (1, 3, 2)
