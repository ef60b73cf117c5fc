"""Encode a plan as JSON with a versioned schema: `plan` writes it; `explain`, `replan`, `validate`, `diff` read it.

Keys carry their units: `_s` seconds, `_bytes_per_second`, `_usd_per_hour`. Schema: docs/capacity-plan.schema.json.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from capacity.inputs.pool.checks import Filled, Skipped
from capacity.inputs.pool.rows import PoolRow
from capacity.model.assumptions import Assumption
from capacity.planner.plans import Plan
from capacity.questions.bill import Bill, bill_of
from capacity.questions.horizon import Forecast, Verdict
from rollcast.runtime.errors import PlanFileError

SCHEMA: Literal["rollcast.capacity.plan/2"] = "rollcast.capacity.plan/2"
FILE_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The sources of a plan's figures.

    Args:
        pool, demand: their files, addresses or other sources, in words.
        model: the model that generates.
        rows: number of rows in the pool; those in ``skipped`` were not used.
        filled: values that rows lacked, and the values taken instead.
        defaults: settings of the demand that were not given, and the values taken instead.
    """

    pool: str
    demand: str
    model: str
    rows: int
    skipped: tuple[Skipped, ...] = ()
    filled: tuple[Filled, ...] = ()
    defaults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The totals under the table.

    Args:
        usd_per_hour, usd_per_step: the whole bill: workers, traffic, learner, coordinator and storage.
        bill: its rows.
    """

    usd_per_hour: float
    usd_per_step: float
    t_bcast_s: float
    staleness_needed: int
    utilisation: float
    gap: float
    chosen: int
    candidates: int
    bill: Bill


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument:
    """One plan with all of its inputs.

    Args:
        schema: schema of this document; another number means that keys were removed or have changed their meaning.
        software: the version of Rollcast that made it.
        made_at: UTC, ISO 8601.
        totals: figures derived from the plan, for readers that need nothing else.
        forecast: cost and duration of so many learner steps; None if it was not requested.
        machines: rows of the pool that state what starts their workers, for `rollcast capacity apply`.
        verdict: whether the deadline or the budget is kept; None without one.
    """

    schema: Literal["rollcast.capacity.plan/2"] = SCHEMA
    software: str
    made_at: str
    inputs: Inputs
    assumptions: tuple[Assumption, ...]
    totals: Totals
    plan: Plan
    forecast: Forecast | None = None
    machines: tuple[PoolRow, ...] = ()
    verdict: Verdict | None = None


def totals_of(plan: Plan) -> Totals:
    """Return the totals of a plan; without a chosen worker the learner waits all the time, and a step costs 0."""
    bill = bill_of(plan.demand, plan.workers_usd_per_hour, plan.egress_usd_per_hour, plan.utilisation)
    return Totals(
        usd_per_hour=bill.usd_per_hour,
        usd_per_step=bill.usd_per_step,
        t_bcast_s=plan.t_bcast_s,
        staleness_needed=plan.staleness_needed,
        utilisation=plan.utilisation,
        gap=plan.gap,
        chosen=len(plan.chosen),
        candidates=len(plan.candidates),
        bill=bill,
    )


def document_of(
    plan: Plan,
    *,
    inputs: Inputs,
    assumptions: tuple[Assumption, ...],
    software: str,
    made_at: str,
    machines: tuple[PoolRow, ...] = (),
) -> PlanDocument:
    """Return the document of a plan."""
    return PlanDocument(
        software=software,
        made_at=made_at,
        inputs=inputs,
        assumptions=assumptions,
        totals=totals_of(plan),
        plan=plan,
        machines=machines,
    )


def encode(document: PlanDocument) -> bytes:
    """Encode a document as indented JSON.

    Raises:
        ValueError: a figure is not finite, so that no JSON can hold it.
    """
    plain = msgspec.to_builtins(document)
    _check_finite(plain, "plan")
    return msgspec.json.format(msgspec.json.encode(plain), indent=1)


def decode(data: bytes, source: str) -> PlanDocument:
    """Read a document.

    Raises:
        PlanFileError: it is none, or of another schema; the message names the key.
    """
    fix = "make it with `rollcast capacity plan --out plan.json`"
    try:
        document = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise PlanFileError(f"{source} is not JSON", cause=str(error), fix=fix) from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        what = f"has the schema {schema!r}" if schema else "is no plan"
        raise PlanFileError(f"{source} {what}", cause=f"this version reads {SCHEMA!r}", fix=fix)
    try:
        return msgspec.convert(document, PlanDocument)
    except msgspec.ValidationError as error:
        raise PlanFileError(f"{source} is not a complete plan", cause=str(error), fix=fix) from None


def read_plan(path: Path) -> PlanDocument:
    """Read a document from a file.

    Raises:
        PlanFileError: it cannot be read, or is no plan.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise PlanFileError(f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB", fix="check that it is a plan")
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        fix = "give the file of a plan; `rollcast capacity plan --out plan.json` writes one"
        raise PlanFileError(f"cannot read {path}", cause=error.strerror or str(error), fix=fix) from None


def json_schema() -> str:
    """Return the JSON Schema (draft 2020-12) of the document."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA}
    return json.dumps(schema | msgspec.json.schema(PlanDocument), indent=1) + "\n"


def _check_finite(value: Any, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_finite(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _check_finite(item, f"{where}[{number}]")
