"""Make machines of a pool for tests of providers."""

from __future__ import annotations

from typing import Any

from capacity.inputs.pool.checks import check_pool
from capacity.inputs.pool.columns import Record
from capacity.inputs.pool.files import Row
from capacity.inputs.pool.rows import PoolRow
from capacity.providers.machines import Machine, machines_of

ROW: Record = {
    "worker_id": "w",
    "hardware": "l4",
    "usd_per_hour": 1.2,
    "upload_mbit_per_second": 40,
    "download_mbit_per_second": 40,
    "egress_usd_per_gb": 0,
}


def pool_row(**values: Any) -> PoolRow:
    """Return a checked row; ``values`` replace those of ROW."""
    checked = check_pool([Row("a test", ROW | values)])
    assert not checked.skipped, checked.skipped
    return checked.taken[0]


def machines(*rows: Record) -> tuple[Machine, ...]:
    """Return the machines of rows, each on top of ROW."""
    return machines_of([pool_row(**row) for row in rows], ())
