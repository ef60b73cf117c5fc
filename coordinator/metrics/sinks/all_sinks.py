"""Combine all sinks of a run into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from coordinator.config.sinks import MetricsConfig
from coordinator.metrics.sinks.background import BackgroundSink
from coordinator.metrics.sinks.file import FileSink
from coordinator.metrics.sinks.prometheus import PrometheusSink
from coordinator.metrics.sinks.sink import Sink
from coordinator.metrics.sinks.tensorboard import FOLDER, TensorBoardSink, require_tensorboard
from coordinator.metrics.sinks.weights_and_biases import WandbSink, require_wandb
from rollcast.runtime.run_folder import RunFolder


class AllSinks:
    """Writes to the file first: a step that the file already has is not written to the other sinks either."""

    name = "all"

    def __init__(self, file: FileSink, others: Sequence[Sink]) -> None:
        self._file = file
        self._others = tuple(others)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write one step to every sink."""
        if step <= self._file.last_step:
            return
        self._file.write(step, values)
        for sink in self._others:
            sink.write(step, values)

    def close(self) -> None:
        for sink in (self._file, *self._others):
            sink.close()


def open_sinks(
    config: MetricsConfig, folder: RunFolder, registry: CollectorRegistry, *, run_id: str, run_name: str
) -> AllSinks:
    """Open the sinks of a run.

    Raises:
        MissingExtra: a configured sink's package is not installed.
        RunFolderError: metrics.jsonl can be neither read nor repaired.
    """
    others: list[Sink] = [PrometheusSink(registry)]
    if "tensorboard" in config.sinks:
        require_tensorboard()
        others.append(BackgroundSink("tensorboard", lambda: TensorBoardSink(folder.root / FOLDER)))
    if "wandb" in config.sinks:
        require_wandb()
        others.append(BackgroundSink("wandb", lambda: _wandb(config, folder, run_id, run_name)))
    return AllSinks(FileSink(folder.metrics), others)


def _wandb(config: MetricsConfig, folder: RunFolder, run_id: str, run_name: str) -> WandbSink:
    to = config.wandb
    return WandbSink(
        folder.root / "wandb", run_id=run_id, run_name=run_name, project=to.project, entity=to.entity, mode=to.mode
    )
