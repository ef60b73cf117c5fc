"""Back up a run while its coordinator works, and restore it on another host.

A backup is a folder: the ledger as it was at one moment, the run's CA and secrets, archived events, its configuration
and metrics, the learner's newest checkpoint and its versions if they are in the run folder too (learner_files.py), and
``manifest.json`` with the BLAKE3 hash of each file. The folder gets its name only once it is complete.
Whatever the coordinator acknowledges after that moment is not in the backup.

Peers may hold versions that the lost coordinator published after the backup. If the restored run reused their numbers
for other contents, two peers could hold different weights under one name. So a restored run begins with a new epoch,
as many steps further on as the learner can have done since the backup. How a learner follows:
learner/publishing/epochs.py.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from blake3 import blake3

from coordinator.core.events.actions import RecordEpoch
from coordinator.ledger.sql import SqlConnection
from coordinator.ledger.sql_work import count_batches, insert_epoch
from coordinator.recovery.authority import FINGERPRINT
from coordinator.recovery.learner_files import linked, own_folder
from coordinator.recovery.learner_key import replace_learner_key
from coordinator.recovery.resume import INCARNATION
from coordinator.stores.reader import has_url
from coordinator.stores.sqlite import store_error
from rollcast.runtime.errors import BackupError
from rollcast.runtime.run_folder import UP, RunFolder, fsync_folder, is_of_up, no_run, write_json
from rollcast.runtime.version import software_version
from rollcast.wire.ids import Epoch, Step, Version

FORMAT = 1
MANIFEST = "manifest.json"
PAGES_AT_ONCE = 256  # pages of the ledger between two reports of progress
COPY_BYTES = 1 << 20
MANIFEST_BYTES_MAX = 64 << 20
#: A restored run must not reuse lease ids that the lost one used after the backup: its incarnation rises by a random
#: number of so many bits.
INCARNATION_BITS = 24
STEPS_EXAMINED = 100  # newest steps; the fastest of them bounds how many there can have been
STEPS_SPARE = 16  # safety margin on the estimated number of steps lost
STEPS_LOST_MAX = 1_000_000  # upper bound on that estimate
_STEP_S_UNKNOWN = 1.0  # assumed seconds per step before two steps are done
_STEP_S_LEAST = 0.05  # lower bound on the seconds per step that the estimate uses
_NAMES = re.compile(
    r"store\.sqlite|metrics\.jsonl|config/(coordinator|up)\.json|secrets/[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
    r"|events/[0-9]{20}\.jsonl\.zst|(checkpoints|versions|base|model)(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}){1,8}"
)

Progress = Callable[[int, int], None]  # receives the ledger's pages copied, and in all


@dataclass(frozen=True, slots=True)
class BackedUp:
    """The facts about a backup."""

    run_id: str
    files: int
    size_bytes: int
    created_unix_s: float
    has_secrets: bool


def back_up(run: RunFolder, target: Path, *, with_secrets: bool, progress: Progress) -> BackedUp:
    """Copy the run to the new folder ``target``; reads only, so the coordinator may be running.

    Raises:
        RunFolderError: there is no run.
        BackupError: ``target`` exists, or it cannot be written.
        StoreError: the ledger is damaged.
    """
    if has_url(run):
        raise BackupError(
            f"the store of {run.root} is in PostgreSQL",
            cause="a backup copies the file of a store in SQLite",
            fix="back the database up with pg_dump, and keep a copy of secrets/",
        )
    if not run.ledger.is_file():
        raise no_run(run.root, run.ledger.name)
    with _whole_or_nothing(target) as partial:
        # The learner's files before the ledger: a checkpoint must not be ahead of the batches that the ledger holds.
        with linked(run) as staging:
            for path in sorted(path for path in staging.rglob("*") if path.is_file()):
                _copy(path, partial / path.relative_to(staging))
        run_id = _copy_ledger(run.ledger, partial / run.ledger.name, progress)
        # Files after the ledger: an event that is archived meanwhile is then in both, not in neither.
        names = [path for path in _files_of(run) if with_secrets or path.parent != run.secrets]
        for path in names:
            _copy(path, partial / path.relative_to(run.root))
        entries = [_entry(path, partial) for path in sorted(partial.rglob("*")) if path.is_file()]
        manifest = {
            "format": FORMAT,
            "run_id": run_id,
            "created_unix_s": time.time(),
            "software": software_version(),
            "has_secrets": with_secrets,
            "files": entries,
        }
        write_json(partial / MANIFEST, manifest, mode=0o600)
    return _backed_up(manifest)


def restore(
    backup: Path, run: RunFolder, *, nothing_lost: bool = False, now_unix_s: float | None = None
) -> tuple[BackedUp, RecordEpoch | None]:
    """Check every file of a backup, then build the run folder from it.

    Args:
        nothing_lost: whether the coordinator has not run since the backup. If it has, the run begins with a new epoch,
            which is returned; otherwise None is. See open_epoch.
        now_unix_s: the time of the restore; None: now.

    Raises:
        BackupError: the backup is damaged or no backup, or the run folder is not empty.
    """
    manifest = _manifest(backup)
    for entry in manifest["files"]:
        _verify(backup / entry["path"], entry)
    with _whole_or_nothing(run.root) as partial:
        for entry in manifest["files"]:
            _copy(backup / entry["path"], partial / entry["path"])
            _verify(partial / entry["path"], entry)
        restored = _backed_up(manifest)
        now_unix_s = time.time() if now_unix_s is None else now_unix_s
        lost_s = None if nothing_lost else now_unix_s - restored.created_unix_s
        epoch = _set_apart(partial / run.ledger.name, lost_s, has_secrets=restored.has_secrets)
        if not restored.has_secrets and is_of_up(partial):
            replace_learner_key(RunFolder(partial))
    return restored, epoch


def _backed_up(manifest: dict[str, Any]) -> BackedUp:
    sizes = [int(entry["size_bytes"]) for entry in manifest["files"]]
    has_secrets = bool(manifest["has_secrets"])
    return BackedUp(manifest["run_id"], len(sizes), sum(sizes), manifest["created_unix_s"], has_secrets)


@contextmanager
def _whole_or_nothing(target: Path) -> Iterator[Path]:
    """Yield a folder next to ``target`` that is renamed to it when the body succeeds, and deleted otherwise.

    Raises:
        BackupError: ``target`` is not empty, or cannot be written.
    """
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise BackupError(f"{target} exists already", fix="choose a folder that does not exist")
        with own_folder(target.parent, f".{target.name}.{{token}}.partial") as partial:
            yield partial
            partial.replace(target)
        fsync_folder(target.parent)
    except OSError as error:
        raise BackupError(
            f"cannot write {target}", cause=str(error), fix="free some space, or choose a folder that can be written"
        ) from None


def _copy_ledger(source: Path, target: Path, progress: Progress) -> str:
    """Copy the ledger as it is at one moment with SQLite's backup; return the run's id.

    The read transaction pins that moment; otherwise every commit of the coordinator would restart the backup.
    """
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=rw", uri=True, isolation_level=None)) as reader,
            closing(sqlite3.connect(target)) as copy,
        ):
            reader.execute("PRAGMA query_only = ON")
            reader.execute("BEGIN")
            row = reader.execute("SELECT value FROM meta WHERE key = 'run_id'").fetchone()
            reader.backup(copy, pages=PAGES_AT_ONCE, progress=lambda _, left, total: progress(total - left, total))
            (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
    except sqlite3.Error as error:
        raise store_error(source, error) from None
    target.chmod(0o600)
    _fsync(target)
    if row is None:
        raise BackupError(f"the run in {source.parent} has not started", fix="start the coordinator once")
    return str(row[0])


def _files_of(run: RunFolder) -> list[Path]:
    """Return the files of a backup other than the ledger."""
    found = [run.metrics, run.config / "coordinator.json", run.config / UP]
    found += [path for folder in (run.secrets, run.events) if folder.is_dir() for path in sorted(folder.iterdir())]
    return [path for path in found if path.is_file() and _NAMES.fullmatch(str(path.relative_to(run.root)))]


def _copy(source: Path, target: Path) -> None:
    """Copy a file with its permissions; its folder is readable for the owner only."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = source.stat().st_mode & 0o777
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with source.open("rb") as read, os.fdopen(descriptor, "wb") as write:
        shutil.copyfileobj(read, write, COPY_BYTES)
        write.flush()
        os.fsync(write.fileno())


def _entry(path: Path, folder: Path) -> dict[str, Any]:
    return {"path": str(path.relative_to(folder)), "size_bytes": path.stat().st_size, "blake3": _hash(path)}


def _hash(path: Path) -> str:
    hasher = blake3()
    hasher.update_mmap(path)
    return hasher.hexdigest()


def _manifest(backup: Path) -> dict[str, Any]:
    path = backup / MANIFEST
    try:
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            raise ValueError("it is too large")
        manifest = json.loads(path.read_bytes())
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']}, and this release reads {FORMAT}")
        names = [entry["path"] for entry in manifest["files"]]
        if not all(_NAMES.fullmatch(name) for name in names) or len(set(names)) != len(names):
            raise ValueError("it names files that no backup has")
        if "store.sqlite" not in names:
            raise ValueError("it names no ledger")
        _backed_up(manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BackupError(
            f"{backup} is not a backup of a run",
            cause=f"{MANIFEST}: {error}",
            fix="give a folder that `rollcast backup` made",
        ) from None
    return dict(manifest)


def _verify(path: Path, entry: dict[str, Any]) -> None:
    try:
        is_same = path.stat().st_size == entry["size_bytes"] and _hash(path) == entry["blake3"]
    except OSError as error:
        raise BackupError(f"{path} cannot be read", cause=str(error), fix="use another backup") from None
    if not is_same:
        raise BackupError(f"{path} is damaged", cause="its hash differs from the manifest's", fix="use another backup")


def _set_apart(ledger: Path, lost_s: float | None, *, has_secrets: bool) -> RecordEpoch | None:
    """Keep the restored run's ids and versions apart from those that the lost one used after the backup.

    Without its secrets the run gets a new authority (and its learner a new key, if `rollcast up` started it).
    """
    try:
        with closing(sqlite3.connect(ledger)) as connection, connection:
            row = connection.execute("SELECT value FROM meta WHERE key = ?", (INCARNATION,)).fetchone()
            raised = int(row[0] if row else 0) + 1 + secrets.randbits(INCARNATION_BITS)
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (INCARNATION, str(raised)))
            if not has_secrets:
                connection.execute("DELETE FROM meta WHERE key = ?", (FINGERPRINT,))
            epoch = None if lost_s is None else open_epoch(connection, lost_s)
    except sqlite3.Error as error:
        raise store_error(ledger, error) from None
    _fsync(ledger)
    return epoch


def open_epoch(connection: SqlConnection, lost_s: float) -> RecordEpoch:
    """Record the epoch with which a restored run begins, ``lost_s`` seconds after its backup was made.

    Raises:
        sqlite3.Error: the ledger cannot be written.
    """
    recorded = count_batches(connection)
    row = connection.execute("SELECT max(version), max(epoch) FROM versions").fetchone()
    (newest_opened,) = connection.execute("SELECT coalesce(max(epoch), 0) FROM epochs").fetchone()
    newest_version, newest_epoch = row[0], max(row[1] or 0, newest_opened)
    epoch = RecordEpoch(
        epoch=Epoch(newest_epoch + 1),
        step_from=Step(recorded),
        step_to=Step(recorded + _steps_lost(connection, lost_s)),
        common_version=None if newest_version is None else Version(newest_version),
    )
    insert_epoch(connection, epoch)
    return epoch


def _steps_lost(connection: SqlConnection, lost_s: float) -> int:
    """Return the most learner steps that can have been done in ``lost_s`` seconds."""
    rows = connection.execute(
        "SELECT reported_unix_s FROM steps ORDER BY step DESC LIMIT ?", (STEPS_EXAMINED,)
    ).fetchall()
    times = [at for (at,) in rows]
    step_s = min((later - sooner for later, sooner in pairwise(times)), default=_STEP_S_UNKNOWN)
    return min(STEPS_LOST_MAX, math.ceil(max(0.0, lost_s) / max(step_s, _STEP_S_LEAST)) + STEPS_SPARE)


def _fsync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
