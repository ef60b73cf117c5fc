"""Report an explained plan: what limits it, the value of each limit, the next workers, and what would help."""

from __future__ import annotations

import math
from collections.abc import Mapping

from capacity.planner.plans import Candidate, Plan
from capacity.questions.explain import Explanation
from capacity.questions.inverse import Bought
from capacity.reports.plan import bill_sheet, row_sheet, slack_sheet, totals_lines
from capacity.reports.tables import Column, Sheet

#: System -> its name for S. docs/capacity.md has the whole dictionary with units.
SYNONYMS: Mapping[str, str] = {
    "prime-rl": "max_off_policy_steps",
    "AReaL": "max_head_offpolicyness",
    "SkyRL": "max_staleness_steps",
    "NeMo-RL": "max_trajectory_age_steps",
    "verl": "max_off_policy_threshold",
    "torchforge": "max_policy_age",
    "INTELLECT-2": "async_level",
}


def explanation_sheets(plan: Plan, explanation: Explanation, bought: Bought | None) -> list[Sheet]:
    """Return the explanation as tables, single changes last; for an infeasible plan only its reason and remedies."""
    if not plan.feasible:
        why = plan.infeasible.what if plan.infeasible is not None else ""
        remedy = Column("remedy", "any one of these makes it feasible, smallest change first")
        return [Sheet(f"infeasible: {why}", (remedy,), _remedies(plan))]
    limits = row_sheet(plan)
    columns = (Column("row", "limit"), Column("words", "value", prose=True))
    prices = tuple((f"{one.row.name} {one.row.subject}".strip(), one.words) for one in explanation.shadow_prices)
    lines = [explanation.what, *_neighbours(explanation), *_dollar(bought), *totals_lines(plan), staleness_line(plan)]
    shadows = Sheet("shadow prices", columns, prices, lines=tuple(lines))
    bills = [bill_sheet(plan), *filter(None, [slack_sheet(plan)])]
    return [limits, shadows, *bills, _changes(plan, explanation)]


def staleness_line(plan: Plan) -> str:
    """Return a line on S, how much of it the plan needs, and its names in other systems."""
    names = ", ".join(f"{name} in {system}" for system, name in SYNONYMS.items())
    return f"S = {plan.demand.staleness_limit}, of which {plan.staleness_needed} is needed; it is called {names}"


def _remedies(plan: Plan) -> tuple[tuple[str], ...]:
    return tuple((remedy,) for remedy in plan.infeasible.remedies) if plan.infeasible is not None else ()


def _neighbours(explanation: Explanation) -> list[str]:
    """Return a line on the last worker that is on, and one on the first that is off, where there are such."""
    lines = []
    for words, one in (("last taken", explanation.last_taken), ("first left out", explanation.first_left_out)):
        if one is not None:
            lines.append(f"{words}: {_named(one)}; {one.reason}")
    return lines


def _dollar(bought: Bought | None) -> list[str]:
    if bought is None:
        return []
    return [
        f"{bought.more_usd_per_hour:g} $/h more buys {bought.rollouts_per_second:.3g} rollouts/s: "
        f"a learner step of {bought.t_train_s:.3g} s could be fed"
    ]


def _changes(plan: Plan, explanation: Explanation) -> Sheet:
    columns = (
        Column("knob", "one change"),
        Column("change", "to"),
        Column("usd_per_hour", "least $/h then", 2),
        Column("saves_usd_per_hour", "saves $/h", 2),
        Column("effect", "", prose=True),
    )
    rows = tuple(
        (
            effect.knob,
            effect.change,
            effect.usd_per_hour if math.isfinite(effect.usd_per_hour) else None,
            effect.saves_usd_per_hour if math.isfinite(effect.saves_usd_per_hour) else None,
            "" if math.isfinite(effect.usd_per_hour) else "no set any more",
        )
        for effect in explanation.changes
    )
    line = f"by the LP bound over all splits; it is {plan.lp_bound_usd_per_hour:,.2f} $/h for this plan's demand"
    return Sheet("single changes", columns, rows, lines=(line,))


def _named(candidate: Candidate) -> str:
    worker = candidate.worker
    return " ".join(filter(None, (worker.worker_id, worker.hardware and f"({worker.hardware})")))
