"""Test a backup of a run in progress, and the run restored from it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator.config.config import CoordinatorConfig
from coordinator.ledger.event_archive import write_segment
from coordinator.ledger.store import StoryEntry
from coordinator.recovery import learner_files
from coordinator.recovery.backup import BackedUp, back_up, restore
from coordinator.recovery.learner_key import replace_learner_key
from coordinator.recovery.resume import INCARNATION
from coordinator.stores.sqlite import Ledger
from rollcast.cli.main import app
from rollcast.runtime.errors import BackupError, RunFolderError, StoreError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import Epoch, RolloutId, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import rollout_to_pb
from rollcast.wire.versions.records import verify_announcement
from tests.coordinator.running import version
from tests.coordinator.stored_work import attempt, group, rollout, score, store_rollout


@pytest.fixture
async def run(tmp_path: Path) -> RunFolder:
    """A run with a few rollouts, secrets and an old segment of its event log."""
    folder = RunFolder(tmp_path / "run").prepare()
    ledger = Ledger.open(folder.ledger)
    await ledger.set_meta("run_id", "run-1")
    await ledger.set_meta(INCARNATION, "3")
    await score(ledger, 1, 2, 3)
    await ledger.close()
    (folder.secrets / "ca.key").write_text("secret")
    (folder.secrets / "ca.key").chmod(0o600)
    (folder.config / "coordinator.json").write_text("{}")
    folder.metrics.write_text('{"step": 1}\n')
    write_segment(folder.events, [StoryEntry(1, 0.0, "a", "b", "c", "d")], 1 << 20)
    return folder


def backed_up(run: RunFolder, target: Path, *, with_secrets: bool = True) -> BackedUp:
    return back_up(run, target, with_secrets=with_secrets, progress=lambda done, total: None)


async def test_a_live_store_is_copied_as_of_one_moment(run: RunFolder, tmp_path: Path) -> None:
    ledger = Ledger.open(run.ledger)
    await ledger.record_group(group(100), "{}")
    stop, under_way = asyncio.Event(), asyncio.Event()
    acked: list[int] = []

    async def write() -> None:
        number = 100
        while not stop.is_set():
            number += 1
            ledger.record_attempt(attempt(number, number, group_id=100))
            done = rollout(number, number, group_id=100, tokens=2000)
            await ledger.store_rollouts([store_rollout(number, done)])
            acked.append(number)
            if len(acked) == 100:
                under_way.set()

    writing = asyncio.create_task(write())
    await under_way.wait()
    before = len(acked)
    seen: list[tuple[int, int]] = []
    made = await asyncio.to_thread(
        back_up, run, tmp_path / "backup", with_secrets=True, progress=lambda *pages: seen.append(pages)
    )
    stop.set()
    await writing
    await ledger.close()
    assert seen[-1][0] == seen[-1][1] > 0
    assert (made.run_id, made.files, made.has_secrets) == ("run-1", 5, True)

    restored, _ = restore(tmp_path / "backup", RunFolder(tmp_path / "again"), nothing_lost=True)
    assert restored == made
    again = Ledger.open(tmp_path / "again" / "store.sqlite")
    accepted = (await again.counts()).accepted
    assert before + 3 <= accepted <= len(acked) + 3
    assert (await again.high_water()).rollout_id == 100 + accepted - 3  # the first ones, without a gap
    assert await again.rollout(RolloutId(2)) == rollout_to_pb(rollout(2, group_id=2))
    assert int(await again.get_meta(INCARNATION) or 0) > 3
    await again.close()


async def test_secrets_stay_secret_and_may_stay_at_home(run: RunFolder, tmp_path: Path) -> None:
    backed_up(run, tmp_path / "with")
    restore(tmp_path / "with", RunFolder(tmp_path / "restored"))
    for folder in (tmp_path / "with", tmp_path / "restored"):
        assert (folder / "secrets").stat().st_mode & 0o777 == 0o700
        assert (folder / "secrets" / "ca.key").stat().st_mode & 0o777 == 0o600
        assert (folder / "secrets" / "ca.key").read_text() == "secret"
    assert not backed_up(run, tmp_path / "without", with_secrets=False).has_secrets
    assert not (tmp_path / "without" / "secrets").exists()


def test_nothing_is_overwritten(run: RunFolder, tmp_path: Path) -> None:
    backed_up(run, tmp_path / "backup")
    with pytest.raises(BackupError, match="already"):
        backed_up(run, tmp_path / "backup")
    with pytest.raises(BackupError, match="already"):
        restore(tmp_path / "backup", run)
    (tmp_path / "empty").mkdir()
    restore(tmp_path / "backup", RunFolder(tmp_path / "empty"))
    assert not list(tmp_path.glob(".*.partial"))


@pytest.mark.parametrize("name", ["store.sqlite", "secrets/ca.key", "manifest.json"])
async def test_a_damaged_backup_is_not_restored_in_part(run: RunFolder, tmp_path: Path, name: str) -> None:
    backed_up(run, tmp_path / "backup")
    path = tmp_path / "backup" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(BackupError):
        restore(tmp_path / "backup", RunFolder(tmp_path / "again"))
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("path", ["../../outside", "/etc/x", "secrets/../../x", "secrets/.hidden", "other.txt"])
async def test_a_manifest_cannot_name_other_files(run: RunFolder, tmp_path: Path, path: str) -> None:
    backed_up(run, tmp_path / "backup")
    manifest = json.loads((tmp_path / "backup" / "manifest.json").read_text())
    manifest["files"].append({"path": path, "size_bytes": 0, "blake3": ""})
    (tmp_path / "backup" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BackupError, match="not a backup"):
        restore(tmp_path / "backup", RunFolder(tmp_path / "again"))


async def test_missing_runs_and_damaged_ledgers_are_named(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run"):
        backed_up(RunFolder(tmp_path), tmp_path / "backup")
    with pytest.raises(BackupError, match="not a backup"):
        restore(run.root, RunFolder(tmp_path / "again"))
    run.ledger.write_bytes(b"garbage" * 1000)
    with pytest.raises(StoreError, match="cannot use the ledger"):
        backed_up(run, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


async def test_restore_says_that_a_run_is_finished(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = str(tmp_path / "backup")
    assert app(["backup", str(run.root), target], result_action="return_value") == 0
    finished = SimpleNamespace(run=SimpleNamespace(steps=0))
    monkeypatch.setattr("rollcast.cli.run.run_tools.run_config", lambda _: finished)
    assert app(["restore", target, str(tmp_path / "again")], result_action="return_value") == 0
    assert "nothing is left to train" in capsys.readouterr().err


async def test_backup_and_restore_commands(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, again = str(tmp_path / "backup"), str(tmp_path / "again")
    assert app(["backup", str(run.root), target, "--json"], result_action="return_value") == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["run_id"], made["files"], made["folder"]) == ("run-1", 5, target)
    assert app(["restore", target, again], result_action="return_value") == 0
    shown = capsys.readouterr()
    assert "restored to" in shown.out
    said = re.search(
        r"after step (\d+).* up to (\d+), so it goes on with step (\d+),.* the (\d+) steps that stay", shown.err
    )
    assert said is not None
    ends, published, goes_on, empty = map(int, said.groups())
    assert (goes_on, empty) == (published + 1, published - ends)
    steps = CoordinatorConfig().run.steps
    assert f"run.steps={steps + empty} ({steps} before) trains the {steps - ends} steps that were left" in shown.err
    assert f"rollcast coordinator COORDINATOR.toml --set run_folder={again} --set run.steps=" in shown.err
    assert "rollcast peer run ORIGIN.toml" in shown.err, "it was not `rollcast up` that started the run"
    assert os.listdir(again)


async def test_a_run_of_up_is_copied_with_what_its_learner_needs(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def written(name: str) -> None:
        path = run.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)

    kept = ("config/up.json", "checkpoints/20.json", "checkpoints/20-1/state/d/0af", "versions/000000000020.version")
    kept += ("versions/000000000019.state", "base/ab12", "model/config.json")
    left = ("checkpoints/10.json", "checkpoints/10-0/state/x", "checkpoints/30-0.orbax-checkpoint-tmp/x")
    left += ("versions/.000000000021.state.1.7.tmp", "origin/identity.key", "logs/learner.log")
    for name in (*kept, *left):
        written(name)
    target, again = tmp_path / "backup", tmp_path / "again"
    assert app(["backup", str(run.root), str(target)], result_action="return_value") == 0
    assert not list(run.root.glob(".backup-*")), "the links are removed"
    assert app(["restore", str(target), str(again)], result_action="return_value") == 0
    assert all((again / name).read_text() == name for name in kept)
    assert not any((again / name).exists() for name in left)
    shown = capsys.readouterr().err
    assert f"    rollcast up --continue {again} --set coordinator.run.steps=" in shown


def test_a_file_that_the_learner_removes_meanwhile_makes_another_attempt(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20):
        (run.checkpoints / f"{step}.json").write_text("{}")
        (run.checkpoints / f"{step}-0").mkdir()
        (run.checkpoints / f"{step}-0" / "array").write_text(str(step))
    link, removed = os.link, []

    def link_after_removal(source: Path, target: Path) -> None:
        if not removed:
            removed.append(run.checkpoints / "20.json")
            removed[0].unlink()
        link(source, target)

    monkeypatch.setattr(learner_files.os, "link", link_after_removal)
    with learner_files.linked(run) as staging:
        found = sorted(str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file())
    assert found == ["checkpoints/10-0/array", "checkpoints/10.json"]
    monkeypatch.setattr(learner_files.os, "link", lambda source, target: source.unlink())
    (run.checkpoints / "10-0" / "array").unlink()
    for step in range(30):
        (run.checkpoints / f"{step}.json").write_text("{}")
    with pytest.raises(BackupError, match="change too fast"), learner_files.linked(run):
        pass


HOLDS = """
import os, sys, time
from pathlib import Path
from coordinator.recovery.learner_files import own_folder
with own_folder(Path(sys.argv[1]), ".copy.{token}.partial"), own_folder(Path(sys.argv[2]), ".backup-{token}"):
    print("holds", flush=True)
    time.sleep(100)
"""


def test_a_backup_removes_what_killed_ones_left_and_nothing_of_one_that_runs(run: RunFolder, tmp_path: Path) -> None:
    """Whatever the ids of processes: in containers that share a folder, several have the same one."""

    def folders() -> set[Path]:
        return {*tmp_path.glob(".copy.*"), *run.root.glob(".backup-*")}

    notes = run.root / ".backup-notes"
    for folder in (notes, run.root / ".backup-4711", tmp_path / f".other.{os.getpid()}.partial"):
        (folder / "inside").mkdir(parents=True)
    before = folders()
    command = [sys.executable, "-c", HOLDS, str(tmp_path), str(run.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"holds\n"
        held = folders() - before
        assert len(held) == 4, "two folders and their locks"
        backed_up(run, tmp_path / "copy")
        assert folders() == held | {notes}
        running.kill()
    backed_up(run, tmp_path / "another")
    assert folders() == {folder for folder in held if folder.parent == tmp_path} | {notes}
    shutil.rmtree(tmp_path / "copy")
    backed_up(run, tmp_path / "copy")
    assert folders() == {notes}
    assert (tmp_path / f".other.{os.getpid()}.partial").exists()


@pytest.mark.parametrize("of_up", [True, False])
async def test_without_its_secrets_a_run_of_up_has_its_versions_signed_with_a_new_key(
    run: RunFolder, tmp_path: Path, of_up: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Identity.load_or_create(run.learner_key)
    removed, announced = version("run-1", old), version("run-1", old, 3)
    ledger = Ledger.open(run.ledger)
    await ledger.record_version(Epoch(0), Version(3), announced.SerializeToString())
    await ledger.close()
    for name, one in (("000000000000.record", removed), ("000000000003.version", announced)):
        (run.versions / name).write_bytes(one.SerializeToString())
    (run.checkpoints / "3.json").write_text("{}")
    if of_up:
        (run.config / "up.json").write_text("{}")
    backed_up(run, tmp_path / "backup", with_secrets=False)
    again = RunFolder(tmp_path / "again")
    assert app(["restore", str(tmp_path / "backup"), str(again.root)], result_action="return_value") == 0
    key = Identity.load(again.learner_key) if of_up else old
    assert (key.public_key != old.public_key) is of_up
    assert again.learner_key.exists() is of_up, "elsewhere the learner has its key"
    assert ("has a new key" in capsys.readouterr().err) is of_up
    ledger = Ledger.open(again.ledger)
    stored = await ledger.newest_version()
    assert stored is not None
    with pytest.raises(sqlite3.IntegrityError, match="never changed"), closing(sqlite3.connect(again.ledger)) as other:
        other.execute("UPDATE versions SET announcement = x'00'")
    await ledger.close()
    files = [(again.versions / name).read_bytes() for name in ("000000000000.record", "000000000003.version")]
    for before, after in zip((announced, removed, announced), (stored.announcement, *files), strict=True):
        found = pb.VersionAnnouncement.FromString(after)
        verify_announcement(found, run_id=RunId("run-1"), learner_public_key=key.public_key)
        assert found.record.payload == before.record.payload


def test_an_unreadable_version_is_named(run: RunFolder, tmp_path: Path) -> None:
    (run.versions / "000000000003.version").write_bytes(b"\xff")
    with pytest.raises(BackupError, match=r"a version in .*3\.version cannot be read"):
        replace_learner_key(run)
