"""Report a pool: its workers at their fastest, and the rows that are not used with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from capacity.model.units import BYTES_PER_MBIT
from capacity.model.workers import Worker
from capacity.questions.plan_json import Inputs
from capacity.reports.plan import family
from capacity.reports.tables import Cell, Column, Sheet

_COLUMNS = (
    Column("worker_id", "worker"),
    Column("provider", "provider"),
    Column("hardware", "hardware"),
    Column("region", "region"),
    Column("usd_per_hour", "$/h", 3),
    Column("rollouts_per_second", "rollouts/s", 3),
    Column("speed_interval", "± speed"),
    Column("concurrency", "at once"),
    Column("t_gen_p90_s", "T_gen p90 s", 0),
    Column("usd_per_1000_rollouts", "$/1000", 3),
    Column("upload_mbit_per_second", "up Mbit/s", 0),
    Column("download_mbit_per_second", "down Mbit/s", 0),
    Column("egress_usd_per_gb", "$/GB sent", 3),
    Column("preemptions_per_hour", "preempted/h", 2),
)
_PRICE_PLACE = 9  # index of the column $/1000 rollouts


def worker_sheet(workers: Sequence[Worker], *, alike_share_a_row: bool) -> Sheet:
    """Return a table of workers at their fastest, the cheapest rollout first.

    Args:
        alike_share_a_row: whether workers that are alike share a row ``8 x NAME``, for screens.
    """
    rows = sorted((_cells(worker) for worker in workers), key=lambda row: (row[_PRICE_PLACE], str(row[0])))
    if alike_share_a_row:
        rows = [_shared(list(members)) for _, members in groupby(rows, key=lambda row: (family(str(row[0])), row[1:]))]
    line = f"{len(workers):,} workers, each at its fastest; $/1000: of rollouts, traffic not counted; ±: 90 % of cases"
    return Sheet("offers", _COLUMNS, tuple(rows), lines=(line,))


def skipped_sheet(inputs: Inputs) -> Sheet:
    """Return a table of every row that is not used, with the reason."""
    columns = (
        Column("where", "where"),
        Column("worker_id", "worker"),
        Column("column", "column"),
        Column("reason", "is"),
        Column("value", "value"),
        Column("detail", "accepted", prose=True),
    )
    rows = tuple(
        (one.where, one.worker_id, one.column, one.reason.replace("_", " "), one.value, one.detail)
        for one in inputs.skipped
    )
    return Sheet("skipped", columns, rows, lines=(f"{len(rows):,} of {inputs.rows:,} rows",))


def _cells(worker: Worker) -> tuple[Cell, ...]:
    fastest = max(worker.speeds, key=lambda speed: speed.rollouts_per_second)
    rate = fastest.rollouts_per_second
    return (
        worker.worker_id,
        worker.provider,
        worker.hardware,
        worker.region,
        worker.usd_per_hour,
        rate,
        _interval(worker.speed_interval),
        fastest.concurrency,
        fastest.t_gen_p90_s,
        worker.usd_per_hour / (rate * 3600.0) * 1000.0,
        worker.upload_bytes_per_second / BYTES_PER_MBIT,
        worker.download_bytes_per_second / BYTES_PER_MBIT,
        worker.egress_usd_per_gb,
        worker.preemptions_per_hour,
    )


def _interval(share: float | None) -> str:
    return "not known" if share is None else f"{share:.0%}"


def _shared(alike: list[tuple[Cell, ...]]) -> tuple[Cell, ...]:
    if len(alike) == 1:
        return alike[0]
    return (f"{len(alike)} x {family(str(alike[0][0]))}", *alike[0][1:])
