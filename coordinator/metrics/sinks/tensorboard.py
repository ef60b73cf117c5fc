"""Write curves for TensorBoard: event files in the run folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.metrics.sinks.sink import numbers
from rollcast.runtime.errors import MissingExtra
from rollcast.runtime.install import install_command

FOLDER = "tensorboard"  # in the run folder
_PACKAGE = "tensorboardX"


def require_tensorboard() -> None:
    """Check that event files can be written. Raises MissingExtra if the package is not installed."""
    if importlib.util.find_spec(_PACKAGE) is None:
        raise MissingExtra(
            'metrics.sinks has "tensorboard", which needs a package that is not installed',
            cause=f"no package {_PACKAGE}",
            fix=f"{install_command('tensorboard')}, or take it out of metrics.sinks",
        )


class TensorBoardSink:
    """Writes one scalar per metric and step.

    Raises:
        MissingExtra: see require_tensorboard.
        OSError: the folder cannot be written.
    """

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        require_tensorboard()
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder), flush_secs=5)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write one scalar per metric."""
        for name, value in numbers(values):
            self._writer.add_scalar(name.replace(":", "/"), value, step)

    def close(self) -> None:
        self._writer.close()
