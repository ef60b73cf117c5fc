"""Lay out the run folder, which holds all data that must survive a process or be read afterwards."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcast.runtime.errors import RunFolderError

UP = "up.json"
"""File in `RunFolder.config` with the settings of every role of a run that `rollcast up` started."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside one run's folder. Only its owner can read ``secrets``."""

    root: Path

    @property
    def config(self) -> Path:
        """Resolved configurations, one JSON file per process."""
        return self.root / "config"

    @property
    def logs(self) -> Path:
        """Logs as JSON lines, one file per process."""
        return self.root / "logs"

    @property
    def secrets(self) -> Path:
        """Keys, certificates and invites."""
        return self.root / "secrets"

    @property
    def learner_key(self) -> Path:
        """The key with which the learner signs versions, in a run that `rollcast up` started."""
        return self.secrets / "learner.key"

    @property
    def authority(self) -> Path:
        """Certificate (PEM) of the run CA, for clients that must trust the coordinator's certificate."""
        return self.root / "ca.pem"

    @property
    def checkpoints(self) -> Path:
        """The learner's checkpoints."""
        return self.root / "checkpoints"

    @property
    def versions(self) -> Path:
        """The learner's own copies of published versions."""
        return self.root / "versions"

    @property
    def base(self) -> Path:
        """The frozen base of a run that trains adapters, under the hash of its bytes."""
        return self.root / "base"

    @property
    def evidence(self) -> Path:
        """The learner's records of rollouts that it left out of training."""
        return self.root / "evidence.jsonl"

    @property
    def skipped_updates(self) -> Path:
        """The learner's reports on batches whose update was skipped."""
        return self.root / "skipped_updates"

    @property
    def profiles(self) -> Path:
        """Traces of the learner's steps, a folder for each."""
        return self.root / "profiles"

    @property
    def model(self) -> Path:
        """Configuration and tokenizer of the model that the learner started from, without its weights."""
        return self.root / "model"

    @property
    def ledger(self) -> Path:
        """The coordinator's SQLite store."""
        return self.root / "store.sqlite"

    @property
    def store_url(self) -> Path:
        """URL of the PostgreSQL database that holds the run's store; missing if that is SQLite."""
        return self.root / "store.url"

    @property
    def fleet_journal(self) -> Path:
        """Journal of rented workers, unless it is in the store."""
        return self.root / "providers" / "journal.jsonl"

    @property
    def fleet_applied(self) -> Path:
        """Workers that operators asked for, unless they are in the store."""
        return self.root / "providers" / "applied.json"

    @property
    def record(self) -> Path:
        """The coordinator's flight record."""
        return self.root / "record"

    @property
    def events(self) -> Path:
        """Old entries of the run's event log, in compressed segments."""
        return self.root / "events"

    @property
    def samples(self) -> Path:
        """Completions of evaluations, one file per version and set."""
        return self.root / "samples"

    @property
    def metrics(self) -> Path:
        """Metrics, one JSON object per learner step."""
        return self.root / "metrics.jsonl"

    @property
    def endpoints(self) -> Path:
        """Addresses of the coordinator, once it listens."""
        return self.root / "endpoints.json"

    @property
    def starting(self) -> Path:
        """What the coordinator is doing while it starts; missing before and afterwards."""
        return self.root / "starting.json"

    @property
    def summary(self) -> Path:
        """Summary of the whole run, written at its end."""
        return self.root / "summary.json"

    @property
    def reward_plot(self) -> Path:
        """Plot of the reward against the learner step."""
        return self.root / "reward.png"

    def prepare(self) -> RunFolder:
        """Create the folders and check that they can be written.

        Raises:
            RunFolderError: the disk is read-only or full, or a path is not a folder.
        """
        try:
            for folder in (self.root, self.config, self.logs, self.checkpoints, self.versions):
                folder.mkdir(parents=True, exist_ok=True)
            self.secrets.mkdir(mode=0o700, exist_ok=True)
            self.secrets.chmod(0o700)
            write_atomically(self.root / ".write-test", b"x")
            (self.root / ".write-test").unlink()
        except OSError as error:
            raise run_folder_error(self.root, error) from None
        return self


def run_folder_error(path: Path, error: OSError) -> RunFolderError:
    """Return the error to raise when the operating system refuses a path in a run's folder, or a peer's."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "free some space, or choose a folder on another disk"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "make the folder writable for this user, or choose another one"
    else:
        fix = "choose another folder"
    return RunFolderError(f"cannot use the folder {path}", cause=str(error), fix=fix)


def is_of_up(root: Path) -> bool:
    """Return whether `rollcast up` started the run in this folder, and so can go on with it."""
    return (RunFolder(root).config / UP).is_file()


def point_latest(folder: RunFolder) -> None:
    """Point the link ``latest`` beside a run's folder to it.

    Raises:
        RunFolderError: the link cannot be created.
    """
    link = folder.root.parent / "latest"
    temporary = link.with_name(f".latest-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(folder.root.name)
        temporary.replace(link)
    except OSError as error:
        raise run_folder_error(link, error) from None


def no_run(folder: Path, lacking: str) -> RunFolderError:
    """Return the error to raise where a command finds no run in the folder; ``lacking``: what every run has."""
    if folder.exists():
        cause = f"it has no {lacking}"
    elif folder.is_absolute():
        cause = "there is no such folder"
    else:
        cause = f"there is no such folder in {Path.cwd()}"
    return RunFolderError(
        f"{folder} holds no run",
        cause=cause,
        fix="give the coordinator's run folder, or work where the run was started; `rollcast init` helps to start one",
    )


def write_atomically(path: Path, data: bytes | bytearray | memoryview, *, mode: int = 0o644) -> None:
    """Replace ``path`` durably: write a temporary file, fsync it, rename it, and fsync the folder.

    Without the last step a crash may bring the old file back: the rename itself is an entry of the folder.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    """Replace ``path`` durably with indented JSON."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode(), mode=mode)
