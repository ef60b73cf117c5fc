"""List what a pool or a demand may contain: columns, keys, and names of the catalogue, with their units."""

from __future__ import annotations

from capacity.catalogue.gpus import gpus
from capacity.catalogue.models import models
from capacity.catalogue.prices import gpu_prices
from capacity.catalogue.token_lengths import LENGTH_NAMES, lengths_named
from capacity.inputs.demand_file import DemandFile
from capacity.inputs.pool.columns import RULES
from capacity.model.units import BYTES_PER_GB
from capacity.reports.tables import Column, Sheet, shown
from rollcast.runtime.config import describe

_REQUIRED = '"required"'  # as describe() writes that a key has no default


def column_sheet() -> Sheet:
    """Return a table of a pool's columns."""
    columns = (
        Column("column", "column"),
        Column("needed", "needed"),
        Column("default", "by default"),
        Column("meaning", "meaning", prose=True),
    )
    rows = tuple(
        (rule.name, rule.needed, "" if rule.default is None else _written(rule.default), rule.meaning)
        for rule in RULES.values()
    )
    return Sheet("columns of a pool", columns, rows)


def demand_sheet() -> Sheet:
    """Return a table of a demand file's keys."""
    columns = (Column("key", "key"), Column("default", "by default"), Column("meaning", "meaning", prose=True))
    rows = tuple((key, "needed" if value == _REQUIRED else value, text) for key, value, text in describe(DemandFile))
    return Sheet("keys of a demand", columns, rows)


def hardware_sheet() -> Sheet:
    """Return a table of the catalogue's accelerators."""
    columns = (
        Column("name", "name"),
        Column("memory_gb", "memory GB", 1),
        Column("bandwidth_gb_per_second", "bandwidth GB/s", 0),
        Column("bf16_tflops", "bf16 TFLOP/s", 0),
    )
    rows = tuple(
        (
            one.name,
            one.memory_bytes / BYTES_PER_GB,
            one.bandwidth_bytes_per_second / BYTES_PER_GB,
            one.flops_per_second / 1e12,
        )
        for one in gpus().values()
    )
    return Sheet("hardware", columns, rows)


def model_sheet() -> Sheet:
    """Return a table of the catalogue's models."""
    columns = (
        Column("name", "name"),
        Column("billion_parameters", "billion parameters", 2),
        Column("keyframe_gb", "keyframe GB", 2),
        Column("cache_bytes_per_token", "cache bytes/token", 0),
    )
    rows = tuple(
        (one.name, one.parameters / 1e9, one.weight_bytes / BYTES_PER_GB, one.kv_bytes_per_token)
        for one in models().values()
    )
    return Sheet("models", columns, rows)


def length_sheet() -> Sheet:
    """Return a table of the catalogue's length distributions, in generated tokens."""
    columns = (
        Column("name", "name"),
        Column("mean_tokens", "mean tokens", 0),
        Column("p90_tokens", "p90", 0),
        Column("p99_tokens", "p99", 0),
    )
    found = [(name, lengths_named(name)) for name in LENGTH_NAMES]
    rows = tuple((name, one.mean, one.quantile(0.9), one.quantile(0.99)) for name, one in found if one is not None)
    return Sheet("lengths of rollouts", columns, rows)


def price_sheet() -> Sheet:
    """Return a table of the catalogue's prices, each with its source."""
    columns = (
        Column("provider", "provider"),
        Column("offer", "offer"),
        Column("hardware", "hardware"),
        Column("gpus", "gpus"),
        Column("kind", "kind"),
        Column("usd_per_hour", "$/h", 3),
        Column("read_on", "read on"),
        Column("source", "source"),
    )
    rows = tuple(
        (one.provider, one.offer, one.hardware, one.gpus, one.kind, one.usd_per_hour, one.read_on, one.source)
        for one in gpu_prices()
    )
    return Sheet("prices", columns, rows, lines=("take 50 % uncertainty: capacity/catalogue/data/prices/README.md",))


def _written(value: str | float | int | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return shown(value, 0)
