"""Save and restore checkpoints: everything that a resumed learner needs to continue as if it had never stopped.

A checkpoint is a folder of arrays, which orbax writes (learner.checkpoints.arrays), and one small file beside it, which
names the folder and holds the host state and a fingerprint of each array. The file is written last, after the arrays
are durable, so a checkpoint without it does not exist. orbax does not fsync; we do. On an object store an object is
durable and appears whole, so neither is needed there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import structlog
from etils import epath

from learner.checkpoints.arrays import ArrayWrite, SavedArrays, TornCheckpoint
from learner.checkpoints.fingerprints import digest_of
from learner.kill_points import kill_point
from rollcast.runtime.errors import CheckpointError, ProcessFailed, RollcastError
from rollcast.runtime.run_folder import RunFolder, fsync_folder, write_atomically

_FORMAT = 4  # version of the file's content; it rises when fields change meaning
_MARK = re.compile(r"(\d+)\.json")
_ARRAYS = re.compile(r"\d+-\d+(\.orbax-checkpoint-tmp.*)?")  # complete, or what a killed process left
_ELSEWHERE = "location"  # in the run folder's own folder of checkpoints: the path of another one

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HostState:
    """The part of a checkpoint besides the arrays, in JSON values only.

    The position in the prompt mixture needs no field: the coordinator records batches by step and serves them again.
    Random streams need none either: steps use no randomness, and ``seed`` determines the noise of warm start,
    evaluations and, with the number of a version, versions.
    """

    step: int  # learner steps completed
    newest_version: int  # newest version frozen at or before step
    run_id: str
    epoch: int
    seed: int
    tokenizer_json: str
    model_json: str
    base_hash: str  # hex, of the frozen base that the arrays complete as adapters; empty: the arrays are whole
    sampling: dict[str, Any]  # temperature, max_new_tokens, stop_token_ids of evaluations
    prompt_tokens_max: int
    trained_ranges: list[list[int]]  # TrainedIds.ranges()
    figures: dict[str, float]  # reward_before, warm_start_s ...: reported again after a restart
    format: int = _FORMAT


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint whose arrays were read completely and checked."""

    host: HostState
    digest: str  # hash of the arrays: equal digests are equal states


class Saving:
    """A checkpoint whose arrays are being written. Exactly one of both methods is called; both block."""

    def __init__(self, checkpoints: Checkpoints, host: HostState, arrays: ArrayWrite) -> None:
        self._checkpoints = checkpoints
        self._arrays = arrays
        self.host = host

    def commit(self) -> None:
        """Wait until the arrays are durable, and let the checkpoint count from then on.

        Raises:
            CheckpointError: it cannot be written.
        """
        self._checkpoints.commit(self.host, self._arrays)

    def discard(self) -> None:
        """Wait for the arrays and remove them: the checkpoint must not count."""
        self._checkpoints.discard(self._arrays)


class Checkpoints:
    """A folder that keeps the newest ``keep`` checkpoints. Methods block, and one may be called at a time.

    Args:
        folder: where checkpoints are, a path or a URL such as gs://bucket/run; created if missing. It is used for
            nothing else. Several processes must share it.
        keep: how many to keep; at least two, because the newest may be torn by a power loss.
        read_only: remove nothing, because a running learner may be writing to the folder.

    Raises:
        CheckpointError: every method raises it if the folder cannot be written or no checkpoint can be read.
    """

    def __init__(self, folder: Path | str, *, keep: int, read_only: bool = False) -> None:
        text = str(folder)
        self._local = None if "://" in text else Path(text).absolute()
        self._folder = epath.Path(text if self._local is None else self._local)
        self._keep = keep
        self._read_only = read_only
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not read_only:
                self._remove_unreferenced()
        except Exception as error:  # of the file system, or of an object store's client
            raise self._cannot_write(error) from None

    def steps(self) -> list[int]:
        """Return the steps of the durable checkpoints, oldest first. It may be called while one is written."""
        found = map(_MARK.fullmatch, self._entries())
        return sorted(int(match[1]) for match in found if match)

    def begin(self, host: HostState, write: Callable[[str], ArrayWrite]) -> Saving:
        """Copy the arrays to the host and begin to write them; it replaces a checkpoint of the same step once durable.

        write: begins to write the arrays into a new folder at a path; see ArrayWrite.
        """
        kill_point("checkpoint_begun")
        try:
            present = set(self._entries())
            name = next(name for number in range(len(present) + 1) if (name := f"{host.step}-{number}") not in present)
            saving = Saving(self, host, write(str(self._folder / name)))
        except Exception as error:  # orbax raises many kinds; each means that there is no checkpoint
            raise self._cannot_write(error) from None
        kill_point("checkpoint_writing")
        return saving

    def commit(self, host: HostState, arrays: ArrayWrite) -> None:
        """See Saving.commit."""
        try:
            saved = arrays.finish()
            kill_point("checkpoint_renamed")
            name = epath.Path(saved.path).name
            if self._local is not None:
                _fsync_tree(self._local / name)
                fsync_folder(self._local)
            self._write(f"{host.step}.json", {"host": asdict(host), "folder": name, "arrays": saved.record_values()})
            for step in self.steps()[: -self._keep]:
                self._mark(step).unlink(missing_ok=True)
            self._remove_unreferenced()
        except Exception as error:  # see begin
            raise self._cannot_write(error) from None
        kill_point("checkpoint_durable")

    def discard(self, arrays: ArrayWrite) -> None:
        """See Saving.discard."""
        try:
            epath.Path(arrays.finish().path).rmtree(missing_ok=True)
        except Exception as error:  # see begin
            raise self._cannot_write(error) from None

    def restore(self, load: Callable[[HostState, SavedArrays], None]) -> Restored | None:
        """Load the newest checkpoint that can be read completely, and remove the torn ones after it.

        Returns None if the folder has no checkpoint at all. load: reads the arrays and raises TornCheckpoint if it
        cannot; it may raise another error to reject a host state.
        """
        steps = self.steps()
        problem = ""
        for step in reversed(steps):
            try:
                host, saved = self._read(step)
                load(host, saved)
            except TornCheckpoint as torn:
                problem = problem or str(torn)
                _log.warning("checkpoint is damaged; trying the previous one", step=step, problem=str(torn))
                continue
            if not self._read_only:
                for later in (later for later in steps if later > step):
                    self._mark(later).unlink(missing_ok=True)
                self._remove_unreferenced()
            return Restored(host, digest_of(saved.records))
        if steps:
            raise CheckpointError(
                f"cannot read any of the {len(steps)} checkpoints in {self._folder}",
                cause=problem,
                fix="restore the folder from a backup, or start the run anew",
            )
        return None

    def _read(self, step: int) -> tuple[HostState, SavedArrays]:
        try:
            values = json.loads(self._mark(step).read_text())
            found = values["host"]["format"]
            if found == _FORMAT:
                path = self._folder / str(values["folder"])
                return HostState(**values["host"]), SavedArrays.from_values(str(path), values["arrays"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TornCheckpoint(f"its host state cannot be read: {type(error).__name__}: {error}") from None
        raise CheckpointError(
            f"the checkpoint in {self._folder} has format {found!r}, this Rollcast reads {_FORMAT}",
            fix="use the Rollcast version that wrote it, or start the run anew",
        )

    def _entries(self) -> list[str]:
        try:
            return [entry.name for entry in self._folder.iterdir()]
        except FileNotFoundError:
            if self._local is not None:
                raise
            return []  # an object store has no folder without objects

    def _mark(self, step: int) -> epath.Path:
        return self._folder / f"{step}.json"

    def _write(self, name: str, values: Any) -> None:
        data = json.dumps(values, indent=1)
        if self._local is None:
            (self._folder / name).write_text(data)
        else:
            write_atomically(self._local / name, data.encode())

    def _remove_unreferenced(self) -> None:
        """Remove the arrays that belong to no checkpoint: of removed ones, and of saves that did not end."""
        entries = self._entries()
        used = set()
        for name in filter(_MARK.fullmatch, entries):
            try:
                used.add(json.loads((self._folder / name).read_text())["folder"])
            except (ValueError, KeyError, TypeError):  # a torn one, which `restore` removes
                continue
        for name in entries:
            if _ARRAYS.fullmatch(name) and name not in used:
                (self._folder / name).rmtree(missing_ok=True)

    def _cannot_write(self, error: Exception) -> RollcastError:
        if isinstance(error, RollcastError):
            return error
        cause = f"{type(error).__name__}: {str(error)[:300]}"
        if jax.process_count() > 1 and isinstance(error, jax.errors.JaxRuntimeError):
            return ProcessFailed("a process of the learner was lost while a checkpoint was written", cause=cause)
        return CheckpointError(
            f"cannot write a checkpoint in {self._folder}",
            cause=cause,
            fix="free some space or make the folder writable, then start the learner again",
        )


def configured_folder(run_folder: RunFolder, configured: str) -> Path | str:
    """Return the folder of a run's checkpoints by its configuration, and note it where `folder_of` finds it.

    configured: a path or a URL; empty: in the run folder.
    """
    noted = run_folder.checkpoints / _ELSEWHERE
    if not configured:
        noted.unlink(missing_ok=True)
        return run_folder.checkpoints
    place = configured if "://" in configured else str(Path(configured).absolute())
    write_atomically(noted, place.encode())
    return place


def folder_of(run_folder: RunFolder) -> Path | str:
    """Return the folder of a run's checkpoints."""
    noted = run_folder.checkpoints / _ELSEWHERE
    return noted.read_text() if noted.exists() else run_folder.checkpoints


def _fsync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        fsync_folder(Path(parent))
