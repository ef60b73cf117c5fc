"""Look up models by size and shape. Origin: data/models/README.md."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from capacity.catalogue.csv_tables import number_or_none, read_rows
from capacity.model.roofline import ModelShape

FOLDER = "models"


@functools.cache
def models() -> Mapping[str, ModelShape]:
    """Return every model of the catalogue by its name, with weights in bf16."""
    return {
        row["name"]: ModelShape(
            name=row["name"],
            parameters=float(row["parameters"]),
            active_parameters=number_or_none(row["active_parameters"]) or 0.0,
            layers=int(row["layers"]),
            width=int(row["width"]),
            kv_heads=int(row["kv_heads"]),
            head_dim=int(row["head_dim"]),
            adapter_parameters=number_or_none(row["adapter_numbers"]) or 0.0,
        )
        for row in read_rows(FOLDER, "models.csv")
    }


def model_named(name: str) -> ModelShape | None:
    """Return a model by its catalogue name (``qwen3-8b``) or repository (``Qwen/Qwen3-8B``), whatever the case.

    Returns None if the catalogue has no such model.
    """
    return models().get(_names().get(name.strip().lower(), ""))


@functools.cache
def _names() -> Mapping[str, str]:
    return {
        known.lower(): row["name"]
        for row in read_rows(FOLDER, "models.csv")
        for known in (row["name"], row["repository"])
    }
