"""Report the bills of a plan and of generating on the learner's own class of GPUs, per model."""

from __future__ import annotations

from collections.abc import Sequence

from capacity.questions.comparison import WORDS, Alternative, Comparison, Way
from capacity.reports.tables import Cell, Column, Sheet

ASSUMED = (
    "prices, lengths and speeds are the plan's; the two ways on the learner's class of GPUs exchange weights and "
    "change between generating and training in no time, rent GPUs one by one, pay for no coordinator and no traffic, "
    "and lose no GPU"
)
_CENTRAL: tuple[Way, ...] = ("synchronous", "asynchronous")


def comparison_sheet(found: Sequence[Comparison]) -> Sheet:
    """Return a table with a row per model and way; what a plan saves stands beside what it is compared with."""
    columns = (
        Column("model", "model"),
        Column("way", "generation"),
        Column("machines", "machines beside the learner"),
        Column("step_s", "step s", 1),
        Column("utilisation_percent", "utilisation %", 1),
        Column("learner_usd_per_hour", "learner $/h", 2),
        Column("generation_usd_per_hour", "generation $/h", 2),
        Column("other_usd_per_hour", "other $/h", 2),
        Column("usd_per_step", "$/step", 4),
        Column("plan_saves_percent", "the plan saves %", 1),
        Column("rented_saves_percent", "without donated %", 1),
    )
    rows = tuple(_cells(one, alternative) for one in found for alternative in one.alternatives)
    learners = "; ".join(f"{one.model} is trained on {one.learner}" for one in found)
    return Sheet("bills", columns, rows, lines=(learners, ASSUMED))


def _cells(found: Comparison, one: Alternative) -> tuple[Cell, ...]:
    bill = one.bill
    return (
        found.model,
        WORDS[one.way],
        one.machines,
        one.step_s,
        100.0 * one.utilisation,
        bill.learner_usd_per_hour,
        bill.workers_usd_per_hour + bill.traffic_usd_per_hour,
        bill.coordinator_usd_per_hour + bill.storage_usd_per_hour,
        bill.usd_per_step,
        _percent(found, "plan", one.way),
        _percent(found, "rented", one.way),
    )


def _percent(found: Comparison, ours: Way, than: Way) -> float | None:
    saving = found.saving(ours, than) if than in _CENTRAL else None
    return None if saving is None else 100.0 * saving
