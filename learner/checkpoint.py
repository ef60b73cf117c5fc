"""Checkpoints: everything that a resumed learner needs to go on as if it had never stopped.

Orbax writes beside and renames, but does not fsync; ``wait`` does, so a finished checkpoint survives power loss.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orbax.checkpoint import v1 as ocp

from rollcast.runtime.errors import CheckpointError
from rollcast.runtime.run_folder import fsync_folder

_FORMAT = 1  # of HostState; rises when its fields change meaning


@dataclass(frozen=True, slots=True)
class HostState:
    """What a checkpoint says beside the arrays. JSON values only.

    The position in the prompt mixture needs no field: the coordinator records batches by step and serves them again.
    """

    step: int  # learner steps completed
    newest_version: int  # newest version frozen at or before step
    run_id: str
    epoch: int
    seed: int
    tokenizer_json: str
    model_json: str
    sampling: dict[str, Any]  # temperature, max_new_tokens, stop_token_ids: what an evaluation samples with
    prompt_tokens_max: int
    trained_ranges: list[list[int]]  # TrainedIds.ranges()
    figures: dict[str, float]  # reward_before, warm_start_s ...: reported again after a restart
    format: int = _FORMAT


class Checkpoints:
    """A folder of checkpoints, the newest ``keep`` of them. Use from one thread.

    Args:
        folder: made if missing.
        keep: how many to keep.
        read_only: leave what a running learner is writing alone.

    Raises:
        CheckpointError: from every method, when the folder cannot be written or a checkpoint cannot be read.
    """

    def __init__(self, folder: Path, *, keep: int, read_only: bool = False) -> None:
        registry = ocp.handlers.local_registry(include_global_registry=False)
        registry.add(ocp.handlers.JsonHandler, checkpointable_name="host")
        registry.add(ocp.handlers.PyTreeHandler, checkpointable_name="state")
        context = ocp.Context()
        context.checkpointables.registry = registry
        self._folder = folder.absolute()
        self._pending: tuple[int, Any] | None = None
        try:
            self._checkpointer = ocp.training.Checkpointer(
                self._folder,
                context=context,
                preservation_policy=ocp.training.preservation_policies.LatestN(keep),
                save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
                cleanup_tmp_directories=not read_only,
            )
        except OSError as error:
            raise _cannot_write(self._folder, error) from None

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, oldest first."""
        return [checkpoint.step for checkpoint in self._checkpointer.checkpoints if self._is_finished(checkpoint.step)]

    def save(self, state: Any, host: HostState) -> None:
        """Start to save a pytree of arrays and the host state; returns once the arrays are copied.

        A checkpoint of the same step is replaced. Call ``wait`` for the outcome; a second save waits for the first.
        """
        self.wait()
        try:
            response = self._checkpointer.save_checkpointables_async(
                host.step, {"state": state, "host": asdict(host)}, force=True, overwrite=host.step in self.steps()
            )
        except Exception as error:  # orbax raises many kinds; each means that there is no checkpoint
            raise _cannot_write(self._folder, error) from None
        self._pending = (host.step, response)

    def wait(self) -> None:
        """Block until the save under way, if any, is durable."""
        if self._pending is None:
            return
        (step, response), self._pending = self._pending, None
        try:
            response.result()
            _fsync_tree(self._folder / str(step))
            fsync_folder(self._folder)
        except Exception as error:  # see save
            raise _cannot_write(self._folder, error) from None

    def load_host(self) -> HostState | None:
        """The newest checkpoint's host state, or None when there is no checkpoint."""
        if self._checkpointer.latest is None:
            return None
        return _host_state(self._load({"host": None})["host"], self._folder)

    def load_state(self, like: Any) -> Any:
        """The newest checkpoint's arrays, in the structure, shapes and dtypes of ``like``."""
        return self._load({"state": like})["state"]

    def close(self) -> None:
        """Finish what is under way and stop orbax's threads."""
        try:
            self.wait()
        finally:
            self._checkpointer.close()

    def _load(self, abstract: dict[str, Any]) -> dict[str, Any]:
        try:
            loaded: dict[str, Any] = self._checkpointer.load_checkpointables(None, abstract)
        except Exception as error:  # see save
            raise CheckpointError(
                f"cannot read the newest checkpoint in {self._folder}",
                cause=f"{type(error).__name__}: {str(error)[:300]}",
                fix="remove the newest checkpoint's folder to go on from the one before, or start the run anew",
            ) from None
        return loaded

    def _is_finished(self, step: int) -> bool:
        return self._pending is None or self._pending[0] != step


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
