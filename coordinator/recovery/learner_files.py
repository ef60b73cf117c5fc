"""Back up the learner's files in a run folder that it shares with the coordinator, as `rollcast up` makes it.

The learner goes on meanwhile: it removes old versions and checkpoints with every step. So its files are first linked
into a folder of their own, which takes a moment, and copied from there. The newest checkpoint is enough, with the
versions on disk: a restored learner repeats the steps after it from the batches in the ledger, which is copied later.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

from rollcast.runtime.errors import BackupError
from rollcast.runtime.run_folder import RunFolder

_ATTEMPTS = 20  # to link files none of which is removed meanwhile
_MARK = ".json"  # a checkpoint N is the file N.json, and a folder that the file names
_UNFINISHED = ".orbax-checkpoint-tmp"
_STAGING = ".backup-{token}"


@contextmanager
def linked(run: RunFolder) -> Iterator[Path]:
    """Yield a folder that holds the learner's files as they are now, under their names in the run folder.

    Raises:
        BackupError: the file system refuses links, or the learner removed files again and again.
    """
    with own_folder(run.root, _STAGING) as staging:
        yield _link_all(run, staging)


@contextmanager
def own_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield a new empty folder that is removed at the end, and remove the folders that killed backups have left.

    A locked file beside a folder tells that its backup still runs. The id of a process would not: backups in containers
    that share the folder may have the same one.

    Args:
        parent: where the folder is; it is made if it does not exist.
        name: the folder's name, with {token} for what tells backups apart.

    Raises:
        OSError: it cannot be made.
    """
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_leftovers(parent, name)
    folder = parent / name.format(token=secrets.token_hex(8))
    lock = _lock_of(folder)
    with lock.open("x") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            folder.mkdir(mode=0o700)  # after its lock, so that no other backup sees it without one
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink()


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _remove_leftovers(parent: Path, name: str) -> None:
    before, after = name.split("{token}")
    for folder in parent.glob(f"{escape(before)}*{escape(after)}"):
        token = folder.name[len(before) : len(folder.name) - len(after)]
        if re.fullmatch("[0-9a-f]+", token) and not _is_held(_lock_of(folder)):
            shutil.rmtree(folder, ignore_errors=True)
            _lock_of(folder).unlink(missing_ok=True)


def _is_held(lock: Path) -> bool:
    try:
        with lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _link_all(run: RunFolder, staging: Path) -> Path:
    """Return the folder below ``staging`` that holds all links."""
    try:
        for attempt in range(_ATTEMPTS):
            linked_here = staging / str(attempt)
            linked_here.mkdir(mode=0o700)
            if _link(run, linked_here):
                return linked_here
    except OSError as error:
        raise BackupError(
            f"cannot link the learner's files in {run.root}",
            cause=str(error),
            fix="make the run folder writable for this user, on a file system that has hard links",
        ) from None
    raise BackupError(
        f"the learner's files in {run.root} change too fast to be copied",
        cause="it removed a file in each attempt",
        fix="stop the run, then back it up",
    )


def _link(run: RunFolder, staging: Path) -> bool:
    """Link the files into the staging folder; return whether none of them was removed meanwhile."""
    names = _names(run)
    try:
        for name in names:
            (staging / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.link(run.root / name, staging / name)
    except FileNotFoundError:
        return False
    return all((run.root / name).exists() for name in names)


def _names(run: RunFolder) -> list[Path]:
    """Return the files of the newest checkpoint, and those of versions, of the base and of the model."""
    marks = [path for path in run.checkpoints.glob(f"[0-9]*{_MARK}") if path.stem.isdigit()]
    newest = max(marks, key=lambda path: int(path.stem), default=None)
    if newest is None:
        return []
    found = [newest, *_below(run.checkpoints, newest.stem)]
    for folder in (run.versions, run.base, run.model):
        found += [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    names = [path.relative_to(run.root) for path in found]
    return [name for name in names if not any(part.startswith(".") for part in name.parts)]  # these are being written


def _below(checkpoints: Path, step: str) -> Iterator[Path]:
    """Yield the arrays of a checkpoint, in folders STEP-0, STEP-1 and so on."""
    for folder in checkpoints.glob(f"{step}-*"):
        if _UNFINISHED not in folder.name:
            yield from (path for path in folder.rglob("*") if path.is_file())
