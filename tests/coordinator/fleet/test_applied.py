"""Test the set of workers that operators ask for, and the machines of the pool that a run may start."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.fleet.applied import AppliedWorkers
from coordinator.fleet.machines import read_machines
from rollcast.runtime.errors import PoolError, StoreError

POOL = """worker_id,count,start,hardware,usd_per_hour,upload_mbit_per_second,download_mbit_per_second,egress_usd_per_gb
spare,2,local,l4,0.4,100,100,0
donor,1,,l4,,,,
"""


async def test_changes_are_durable_and_keep_the_first_reason(tmp_path: Path) -> None:
    path = tmp_path / "providers" / "applied.json"
    applied = AppliedWorkers.load(path)
    await applied.change(["a", "b"], [], "chosen by one.json")
    await applied.change(["b", "c"], ["a"], "chosen by two.json")
    assert AppliedWorkers.load(path).reasons == applied.reasons
    assert applied.reasons == {"b": "chosen by one.json", "c": "chosen by two.json"}


@pytest.mark.parametrize("text", ["", '{"schema": 2, "workers": {}}', '{"schema": 1, "workers": {"../x": "why"}}'])
def test_a_damaged_file_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "applied.json"
    path.write_text(text)
    with pytest.raises(StoreError, match="applied"):
        AppliedWorkers.load(path)


def test_only_rows_that_a_run_starts_are_read(tmp_path: Path) -> None:
    path, demand = tmp_path / "pool.csv", Path(__file__).parents[3] / "configs" / "demand.toml"
    path.write_text(POOL)
    unknown, estimated = read_machines(path, None), read_machines(path, demand)
    assert [one.worker_id for one in unknown] == [one.worker_id for one in estimated] == ["spare-1", "spare-2"]
    assert (unknown[0].worker.speeds, bool(estimated[0].worker.speeds)) == ((), True)
    path.write_text(POOL.replace("0.4,100", "0.4,0"))
    with pytest.raises(PoolError, match="1 of the 1 rows") as found:
        read_machines(path, None)
    assert "upload_mbit_per_second is 0" in found.value.cause
    path.write_text(POOL.replace("local", ""))
    with pytest.raises(PoolError, match="no worker that a run could start"):
        read_machines(path, None)
