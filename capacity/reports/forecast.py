"""A forecast of a whole run as a table."""

from __future__ import annotations

from capacity.questions.horizon import Forecast
from capacity.reports.tables import Column, Sheet


def forecast_sheet(forecast: Forecast) -> Sheet:
    """Hours and dollars with their spread, and how likely a deadline and a budget are kept."""
    columns = (
        Column("figure", f"of {forecast.steps:,} learner steps"),
        Column("p10", "p10", 2),
        Column("p50", "median", 2),
        Column("p90", "p90", 2),
    )
    ranges = (
        ("hours", forecast.hours),
        ("$ in all", forecast.usd),
        ("  workers", forecast.workers_usd),
        ("  traffic", forecast.egress_usd),
        ("  learner", forecast.learner_usd),
        ("  storage", forecast.storage_usd),
        ("learner utilisation", forecast.utilisation),
    )
    rows = tuple((name, one.p10, one.p50, one.p90) for name, one in ranges)
    kept = (("the deadline", forecast.in_time), ("the budget", forecast.in_budget))
    lines = tuple(f"{name} is kept in {share:.0%} of the draws" for name, share in kept if share is not None)
    return Sheet("forecast", columns, rows, lines=lines)
