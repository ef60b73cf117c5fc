"""Curves at Weights & Biases, or in files for it where there is no network."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.config.sinks import WandbMode
from coordinator.metrics.sinks.sink import numbers
from rollcast.runtime.errors import MissingExtra


def require_wandb() -> None:
    """Raises MissingExtra where it is not installed."""
    if importlib.util.find_spec("wandb") is None:
        raise MissingExtra(
            'metrics.sinks has "wandb", which needs a package that is not installed',
            cause="no package wandb",
            fix="pip install 'rollcast[wandb]', or take it out of metrics.sinks",
        )


class WandbSink:
    """One run there for one of ours: taken up again under its id by a coordinator that was started again.

    Args:
        run_id: ours.
        mode: offline writes files that `wandb sync` sends later.

    Raises:
        MissingExtra: see require_wandb.
    """

    name = "wandb"

    def __init__(self, folder: Path, *, run_id: str, run_name: str, project: str, entity: str, mode: WandbMode) -> None:
        require_wandb()
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            dir=str(folder),
            id=run_id,
            name=run_name,
            project=project,
            entity=entity or None,
            mode=mode,
            resume="allow" if mode == "online" else None,  # with it, wandb 0.31 writes no figures offline
            # Figures only: nothing about this machine, its packages or its code leaves it.
            save_code=False,
            settings=wandb.Settings(
                disable_git=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
                console="off",
                silent=True,
            ),
        )

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """All figures of a step in one record. Names of peers stay here."""
        self._run.log({name: value for name, value in numbers(values) if ":" not in name}, step=step)

    def close(self) -> None:
        self._run.finish()
