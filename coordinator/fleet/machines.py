"""Read the machines that this run may start from the planner's own files: the pool, and the demand for their speeds."""

from __future__ import annotations

from pathlib import Path

from capacity.inputs.demand_file import DemandFile
from capacity.inputs.pool.checks import check_pool, skipped_lines
from capacity.inputs.pool.files import read_pool
from capacity.inputs.pool.speeds import workers_of
from capacity.providers.machines import STARTED_BY_US, Machine, machines_of
from capacity.questions.scenario import rollouts_of
from rollcast.runtime.config import parse_config, read_toml
from rollcast.runtime.errors import PoolError


def read_machines(pool: Path, demand: Path | None) -> tuple[Machine, ...]:
    """Return the machines of a pool that this coordinator can start.

    Rows that others start are not looked at. Blocks on the disk.

    Args:
        demand: file by whose model and lengths the speeds are known; None: no speed is.

    Raises:
        PoolError: the pool cannot be read, has no row to start, or such a row cannot be used.
        ConfigError: the demand cannot be read.
    """
    rows = [row for row in read_pool(pool) if row.values.get("start") in STARTED_BY_US]
    if not rows:
        choices = ", ".join(STARTED_BY_US)
        raise PoolError(f"{pool} has no worker that a run could start", fix=f"set the column `start` to {choices}")
    checked = check_pool(rows)
    if checked.skipped:
        raise PoolError(
            f"{len(checked.skipped)} of the {len(rows)} rows of {pool} that a run would start cannot be used",
            cause=" ".join(skipped_lines(checked.skipped)),
            fix="correct these rows; `rollcast capacity offers columns` lists what each column holds",
        )
    if demand is None:
        return machines_of(checked.taken, ())
    file = parse_config(read_toml(demand), DemandFile, source=str(demand))
    return machines_of(checked.taken, workers_of(checked.taken, rollouts_of(file)).workers)
