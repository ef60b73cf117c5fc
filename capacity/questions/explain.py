"""Explain a plan: its binding limits and their value, the first worker left out, and what would change the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capacity.model.units import BYTES_PER_MBIT
from capacity.planner.plans import Candidate, Plan, Row
from capacity.questions.sensitivities import KnobEffect, single_changes


@dataclass(frozen=True, slots=True)
class ShadowPrice:
    """The shadow price of one row.

    Args:
        usd_per_hour: what one ``per`` more of the row's limit costs (rate) or saves (links), to first order.
    """

    row: Row
    per: str
    usd_per_hour: float
    words: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a plan.

    Args:
        binding: names of the rows with a price, the dearest first; of an infeasible plan the row that cannot be met.
        what: one sentence.
        shadow_prices: of the rows that bind.
        first_left_out: the worker that is off with the smallest reduced cost; None where all are on or barred.
        last_taken: the worker that is on with the largest reduced cost.
        changes: single changes of a knob and what they do to the least cost, the best first. Of an infeasible plan
            these are empty: its remedies are in ``plan.infeasible``.
    """

    binding: tuple[str, ...]
    what: str
    shadow_prices: tuple[ShadowPrice, ...]
    first_left_out: Candidate | None
    last_taken: Candidate | None
    changes: tuple[KnobEffect, ...]


def explain(plan: Plan) -> Explanation:
    """Explain a plan. Every knob is changed once and the relaxations solved again: seconds for 10,000 workers."""
    if plan.infeasible is not None:
        why = plan.infeasible
        return Explanation((why.binding,), why.what, (), None, None, ())
    prices = tuple(sorted(_prices(plan.rows), key=lambda price: -price.usd_per_hour))
    binding = tuple(f"{price.row.name} {price.row.subject}".strip() for price in prices)
    workers = [one.worker for one in plan.candidates]
    return Explanation(
        binding=binding,
        what=_what(plan, binding),
        shadow_prices=prices,
        first_left_out=_first_left_out(plan),
        last_taken=max(plan.chosen, key=lambda one: one.reduced_usd_per_hour, default=None),
        changes=single_changes(plan.demand, workers),
    )


def _prices(rows: Sequence[Row]) -> list[ShadowPrice]:
    return [_price(row) for row in rows if row.shadow_usd_per_hour > 0]


def _price(row: Row) -> ShadowPrice:
    if row.unit == "bytes/s":
        usd = row.shadow_usd_per_hour * BYTES_PER_MBIT
        why = f"one more Mbit/s of the origin's or a relay's uplink saves {usd:.3g} $/h"
        return ShadowPrice(row, "Mbit/s", usd, why)
    usd = row.shadow_usd_per_hour
    where = f" without {row.subject}" if row.name == "region" else ""
    return ShadowPrice(row, row.unit, usd, f"one more rollout/s{where} costs {usd:.3g} $/h")


def _what(plan: Plan, binding: tuple[str, ...]) -> str:
    limits = " and ".join(binding) if binding else "no row"
    verb = "limit" if len(binding) > 1 else "limits"
    return (
        f"{limits} {verb} the plan: {len(plan.chosen)} of {len(plan.candidates)} workers for {plan.usd_per_hour:.4g} "
        f"$/h; with parts of workers {plan.lp_bound_usd_per_hour:.4g} $/h would suffice"
    )


def _first_left_out(plan: Plan) -> Candidate | None:
    off = [
        one
        for one in plan.candidates
        if not one.chosen and one.worker.pin != "off" and one.speed is not None and one.useful_rollouts_per_second > 0
    ]
    able = [one for one in off if "downlink" not in one.reason]
    return min(able, key=lambda one: one.reduced_usd_per_hour, default=None)
