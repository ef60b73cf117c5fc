"""Check the rows of a pool. A row with a missing, zero or absurd value is skipped and counted, never guessed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from capacity.catalogue.egress import egress_usd_per_gb
from capacity.inputs.pool.columns import RULES, ColumnRule, Record, Value
from capacity.inputs.pool.files import Row
from capacity.inputs.pool.rows import PoolRow
from capacity.inputs.pool.starts import start_problem
from rollcast.runtime.errors import PoolError

Reason = Literal[
    "missing",
    "zero",
    "absurd",
    "not_a_number",
    "not_a_choice",
    "duplicate",
    "unknown_hardware",
    "does_not_fit",
    "cannot_start",
]
Origin = Literal["default", "assumption", "donated", "region"]

WORKERS_MAX = 200_000
"""Most workers in a pool; a row counts as ``count`` of them."""

_YES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_EXAMPLES_SHOWN = 3
_IS: dict[Reason, str] = {
    "missing": "is missing",
    "zero": "is 0",
    "absurd": "is absurd",
    "not_a_number": "is not a number",
    "not_a_choice": "is not a choice",
    "duplicate": "is used twice",
    "unknown_hardware": "is not in the catalogue",
    "does_not_fit": "does not fit",
    "cannot_start": "does not allow a start",
}
_OPTIONAL = tuple(rule.name for rule in RULES.values() if not rule.needed and rule.default is None)
_REPORTED = ("gpus", "relays", "preemptions_per_hour", "lost_per_preemption_s")
"""Columns whose defaults change a plan enough to be reported where they were used."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """One row that is not used.

    Args:
        where: the row's place in the file.
        worker_id: name of the row; empty where the name itself is missing.
        column: the column whose value is rejected.
        value: that value as it was read; empty where it is missing.
        detail: the values that would be accepted, in words.
    """

    where: str
    worker_id: str
    reason: Reason
    column: str
    value: str
    detail: str


@dataclass(frozen=True, slots=True)
class Filled:
    """A value that was filled in where rows had none.

    Args:
        rows: number of rows that it was filled into.
        origin: the schema's default, the user's assumption, 0 as the row is donated, or its region's list price.
    """

    column: str
    value: Value
    rows: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class CheckedPool:
    """The rows of a pool that are used and those that are not.

    Args:
        rows: number of rows read; ``len(taken) + len(skipped) = rows``.
    """

    rows: int
    taken: tuple[PoolRow, ...]
    skipped: tuple[Skipped, ...] = ()
    filled: tuple[Filled, ...] = ()


class _Refusal(Exception):
    def __init__(self, reason: Reason, column: str, value: object, detail: str) -> None:
        super().__init__(reason)
        self.reason, self.column, self.value, self.detail = reason, column, value, detail


@dataclass(slots=True)
class _Progress:
    assumed: Record
    names: set[str] = field(default_factory=set)
    filled: Counter[tuple[str, Value, Origin]] = field(default_factory=Counter)


def check_pool(rows: Sequence[Row], assumed: Record | None = None) -> CheckedPool:
    """Check every row, and separate those that can be used from those that cannot.

    Args:
        rows: rows as read.
        assumed: values for empty cells, by column; they are checked like any other.

    Raises:
        PoolError: the pool has more than WORKERS_MAX workers.
    """
    progress = _Progress(assumed or {})
    taken: list[PoolRow] = []
    skipped: list[Skipped] = []
    for row in rows:
        try:
            taken.append(_taken(row, progress))
        except _Refusal as refusal:
            name, value = str(row.values.get("worker_id", "")), "" if refusal.value is None else str(refusal.value)
            skipped.append(Skipped(row.where, name, refusal.reason, refusal.column, value, refusal.detail))
    filled = [Filled(column, value, count, origin) for (column, value, origin), count in progress.filled.items()]
    return CheckedPool(len(rows), tuple(taken), tuple(skipped), tuple(sorted(filled, key=filled_line)))


def skipped_lines(skipped: Iterable[Skipped]) -> list[str]:
    """Return a sentence for each reason and column with the first examples, the one about most rows first."""
    groups: dict[tuple[str, str], list[Skipped]] = {}
    for one in skipped:
        groups.setdefault((one.reason, one.column), []).append(one)
    lines = []
    for _, members in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        names = ", ".join(_example(one) for one in members[:_EXAMPLES_SHOWN])
        more = f" and {len(members) - _EXAMPLES_SHOWN} more" if len(members) > _EXAMPLES_SHOWN else ""
        rows = names if len(members) == 1 else f"{len(members)} rows ({names}{more})"
        lines.append(f"Skipped {rows}: {_why(members)}")
    return lines


def _why(members: Sequence[Skipped]) -> str:
    first, alone = members[0], len(members) == 1
    if (first.reason, first.column) == ("zero", "usd_per_hour"):
        if alone:
            return "its price is 0. If it is free, set donated = yes in that row."
        return "their price is 0. If they are free, set donated = yes in those rows."
    verb = "are missing" if "," in first.column else _IS[first.reason]
    return f"{first.column} {verb}: {first.detail}."


def filled_line(filled: Filled) -> str:
    """Return in words which value was filled in, why, and in how many rows."""
    origin = {
        "default": "the default",
        "assumption": "as assumed",
        "donated": "donated",
        "region": "the region's list price",
    }[filled.origin]
    value = (
        {True: "yes", False: "no"}.get(filled.value, filled.value) if isinstance(filled.value, bool) else filled.value
    )
    rows = "1 row that lacks it" if filled.rows == 1 else f"{filled.rows} rows that lack it"
    return f"{filled.column} = {value} in {rows}: {origin}"


def _example(skipped: Skipped) -> str:
    name = f"`{skipped.worker_id or skipped.where}`"
    shows_value = skipped.value and skipped.reason not in ("duplicate", "zero")
    return f"{name} ({skipped.value})" if shows_value else name


def _taken(row: Row, progress: _Progress) -> PoolRow:
    filled: list[tuple[str, Value, Origin]] = []
    record = dict(row.values)
    for column, value in progress.assumed.items():
        if column not in record:
            record[column] = value
            filled.append((column, value, "assumption"))
    values: dict[str, Any] = {name: _accepted(RULES[name], value) for name, value in record.items()}
    _fill_donated(values, filled)
    _fill_egress(values, filled)
    _check_needed(values)
    for rule in RULES.values():
        if rule.name not in values and rule.default is not None:
            values[rule.name] = rule.default
            if rule.name in _REPORTED:
                filled.append((rule.name, rule.default, "default"))
    _check_speed(values)
    whole: dict[str, Any] = dict.fromkeys(_OPTIONAL) | values
    taken = PoolRow(where=row.where, **whole)
    problem = start_problem(taken)
    if problem is not None:
        raise _Refusal("cannot_start", problem.column, problem.value, problem.detail)
    _check_names(taken, progress)
    if not taken.preemptions_per_hour:
        filled = [one for one in filled if one[0] != "lost_per_preemption_s"]
    progress.filled.update(filled)
    return taken


def _accepted(rule: ColumnRule, value: Value) -> Value:
    """Return the value in its column's type.

    Raises:
        _Refusal: the value is not one that the column may hold.
    """
    if rule.kind == "text":
        if rule.choices and value not in rule.choices:
            raise _Refusal("not_a_choice", rule.name, value, "one of " + ", ".join(filter(None, rule.choices)))
        return str(value)
    if rule.kind == "flag":
        found = value if isinstance(value, bool) else _YES.get(str(value).lower())
        if found is None:
            raise _Refusal("not_a_choice", rule.name, value, "yes or no")
        return found
    return _number(rule, value)


def _number(rule: ColumnRule, value: Value) -> Value:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise _Refusal("not_a_number", rule.name, value, f"a number from {rule.low:g} to {rule.high:g}")
    if number == 0 and (rule.zero_is_fine or rule.name == "usd_per_hour"):
        return 0.0
    if number == 0:
        raise _Refusal("zero", rule.name, value, rule.meaning)
    if not rule.low <= number <= rule.high:
        raise _Refusal("absurd", rule.name, value, f"accepted from {rule.low:g} to {rule.high:g}")
    if rule.kind == "whole" and number != int(number):
        raise _Refusal("not_a_number", rule.name, value, "a whole number")
    return int(number) if rule.kind == "whole" else number


def _fill_donated(values: dict[str, Any], filled: list[tuple[str, Value, Origin]]) -> None:
    if values.get("donated"):
        for column in ("usd_per_hour", "egress_usd_per_gb"):
            if column not in values:
                values[column] = 0.0
                filled.append((column, 0.0, "donated"))
    elif values.get("usd_per_hour") == 0:
        raise _Refusal("zero", "usd_per_hour", 0, "a free machine needs donated = yes in its row")


def _fill_egress(values: dict[str, Any], filled: list[tuple[str, Value, Origin]]) -> None:
    price = egress_usd_per_gb(values.get("region", ""))
    if "egress_usd_per_gb" not in values and price is not None:
        values["egress_usd_per_gb"] = price
        filled.append(("egress_usd_per_gb", price, "region"))


def _check_needed(values: dict[str, Any]) -> None:
    missing = [rule for rule in RULES.values() if rule.needed and rule.name not in values]
    if values.get("spot") and "preemptions_per_hour" not in values:
        missing.append(RULES["preemptions_per_hour"])
    if len(missing) == 1:
        raise _Refusal("missing", missing[0].name, None, missing[0].meaning)
    if missing:
        detail = "every row needs them; --assume column=value fills one in everywhere"
        raise _Refusal("missing", ", ".join(rule.name for rule in missing), None, detail)


def _check_speed(values: dict[str, Any]) -> None:
    measured = [name for name in ("rollouts_per_second", "tokens_per_second") if name in values]
    sheet = {"memory_gb", "bandwidth_gb_s", "tflops_bf16"} <= values.keys()
    if not measured and not sheet and not values["hardware"]:
        raise _Refusal(
            "missing", "hardware", None, "without a measured speed, the speed is estimated from the hardware"
        )
    if measured and "concurrency" not in values:
        raise _Refusal("missing", "concurrency", None, f"{measured[0]} has no meaning without it")


def _check_names(row: PoolRow, progress: _Progress) -> None:
    if len(progress.names) + row.count > WORKERS_MAX:
        raise PoolError(f"the pool has more than {WORKERS_MAX} workers", fix="check the column `count`, or filter it")
    names = row.worker_ids
    taken = next((name for name in names if name in progress.names), None)
    if taken is not None:
        raise _Refusal("duplicate", "worker_id", taken, "an earlier row has this name")
    progress.names.update(names)
