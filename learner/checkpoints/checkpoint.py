"""Save and restore checkpoints: everything that a resumed learner needs to continue as if it had never stopped.

Orbax writes to a temporary folder and renames it, but does not fsync; we do, and a checkpoint counts only afterwards.
Each carries the hash of its arrays, so that one torn by a power loss is detected and the one before it is used.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import structlog
from blake3 import blake3
from orbax.checkpoint import v1 as ocp

from learner.distributed.jax_internals import save_without_the_others
from learner.kill_points import kill_point
from rollcast.runtime.errors import CheckpointError
from rollcast.runtime.run_folder import fsync_folder

_FORMAT = 2  # version of HostState; it rises when fields change meaning
_UNFINISHED = ".orbax-checkpoint-tmp"  # part of the name of a folder that orbax is writing

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HostState:
    """The part of a checkpoint besides the arrays, in JSON values only.

    The position in the prompt mixture needs no field: the coordinator records batches by step and serves them again.
    Random streams need none either: steps use no randomness, and ``seed`` determines the noise of warm start and
    evaluations.
    """

    step: int  # learner steps completed
    newest_version: int  # newest version frozen at or before step
    run_id: str
    epoch: int
    seed: int
    tokenizer_json: str
    model_json: str
    sampling: dict[str, Any]  # temperature, max_new_tokens, stop_token_ids of evaluations
    prompt_tokens_max: int
    trained_ranges: list[list[int]]  # TrainedIds.ranges()
    figures: dict[str, float]  # reward_before, warm_start_s ...: reported again after a restart
    format: int = _FORMAT


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint that was read completely, with its hash checked."""

    host: HostState
    state: Any
    digest: str  # hash of the arrays: equal digests are equal states


class _Torn(Exception):
    """A checkpoint that cannot be read, or whose arrays are not those that were saved."""


class Checkpoints:
    """A folder that keeps the newest ``keep`` checkpoints. Methods block, and one may be called at a time.

    Args:
        folder: where checkpoints are; created if missing.
        keep: how many to keep; at least two, because the newest may be torn by a power loss.
        read_only: remove nothing, because a running learner may be writing to the folder.

    Raises:
        CheckpointError: every method raises it if the folder cannot be written or no checkpoint can be read.
    """

    def __init__(self, folder: Path, *, keep: int, read_only: bool = False) -> None:
        self._folder = folder.absolute()
        self._keep = keep
        self._read_only = read_only
        self._writing: int | None = None
        self._context = _context()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for unfinished in () if read_only else self._folder.glob(f"*{_UNFINISHED}*"):
                shutil.rmtree(unfinished, ignore_errors=True)
        except OSError as error:
            raise _cannot_write(self._folder, error) from None

    def steps(self) -> list[int]:
        """Return the steps of the durable checkpoints, oldest first. It may be called while ``save`` runs."""
        found = sorted(int(entry.name) for entry in self._folder.iterdir() if entry.name.isdigit())
        return [step for step in found if step != self._writing]

    def save(self, state: Mapping[str, np.ndarray[Any, Any]], host: HostState) -> None:
        """Save arrays by name and the host state; return once both are durable. It replaces one of the same step."""
        again = host.step in self.steps()
        self._writing = host.step
        try:
            host_values = asdict(host) | {"state_digest": digest_of(state)}
            kill_point("checkpoint_begun")
            with self._context:
                path = self._folder / str(host.step)
                response = ocp.save_checkpointables_async(
                    path, {"state": dict(state), "host": host_values}, overwrite=again
                )
                kill_point("checkpoint_writing")
                response.result()
            kill_point("checkpoint_renamed")
            _fsync_tree(self._folder / str(host.step))
            fsync_folder(self._folder)
            self._remove(sorted({*self.steps(), host.step})[: -self._keep])
        except Exception as error:  # orbax raises many kinds; each means that there is no checkpoint
            raise _cannot_write(self._folder, error) from None
        self._writing = None
        kill_point("checkpoint_durable")

    def restore(self, like: Callable[[HostState], Any]) -> Restored | None:
        """Return the newest checkpoint that can be read completely, and remove the torn ones after it.

        Returns None if the folder has no checkpoint at all. like: returns the structure, shapes and dtypes of the
        arrays, or raises to reject a host state.
        """
        steps = self.steps()
        problem = ""
        for step in reversed(steps):
            try:
                restored = self._read(step, like)
            except _Torn as torn:
                problem = problem or str(torn)
                _log.warning("checkpoint is damaged; trying the previous one", step=step, problem=str(torn))
                continue
            self._remove([later for later in steps if later > step])
            return restored
        if steps:
            raise CheckpointError(
                f"cannot read any of the {len(steps)} checkpoints in {self._folder}",
                cause=problem,
                fix="restore the folder from a backup, or start the run anew",
            )
        return None

    def _read(self, step: int, like: Callable[[HostState], Any]) -> Restored:
        host_values = self._load(step, {"host": None})["host"]
        if not isinstance(host_values, dict):
            raise _Torn("its host state is not an object")
        digest = host_values.pop("state_digest", "")
        host = _host_state(host_values, self._folder)
        state = self._load(step, {"state": like(host)})["state"]
        if digest_of(state) != digest:
            raise _Torn("its arrays are not those that were saved")
        return Restored(host, state, digest)

    def _load(self, step: int, abstract: dict[str, Any]) -> dict[str, Any]:
        try:
            with self._context:
                loaded: dict[str, Any] = ocp.load_checkpointables(self._folder / str(step), abstract)
        except Exception as error:  # see save
            raise _Torn(f"{type(error).__name__}: {str(error)[:300]}") from None
        return loaded

    def _remove(self, steps: list[int]) -> None:
        if self._read_only:
            return
        for step in steps:
            shutil.rmtree(self._folder / str(step), ignore_errors=True)


def _context() -> Any:
    """Configure orbax for our two items, state and host, and without the learner's other processes."""
    registry = ocp.handlers.local_registry(include_global_registry=False)
    registry.add(ocp.handlers.JsonHandler, checkpointable_name="host")
    registry.add(ocp.handlers.PyTreeHandler, checkpointable_name="state")
    context = ocp.Context()
    context.checkpointables.registry = registry
    own = jax.process_index()
    context.multiprocessing.primary_host = own
    context.multiprocessing.active_processes = {own}
    context.multiprocessing.barrier_sync_key_prefix = "rollcast"
    save_without_the_others()
    return context


def digest_of(state: Mapping[str, Any]) -> str:
    """Return the BLAKE3 hash of names, dtypes, shapes and bytes of arrays in hex; only equal states have equal ones."""
    digest = blake3(max_threads=blake3.AUTO)
    for name in sorted(state):
        array = np.ascontiguousarray(state[name])
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


def _host_state(values: dict[str, Any], folder: Path) -> HostState:
    if values.get("format") != _FORMAT:
        raise CheckpointError(
            f"the checkpoint in {folder} has format {values.get('format')!r}, this Rollcast reads {_FORMAT}",
            fix="use the Rollcast version that wrote it, or start the run anew",
        )
    return HostState(**values)


def _cannot_write(folder: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"cannot write a checkpoint in {folder}",
        cause=f"{type(error).__name__}: {str(error)[:300]}",
        fix="free some space or make the folder writable, then start the learner again",
    )


def _fsync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        fsync_folder(Path(parent))
