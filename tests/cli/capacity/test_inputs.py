from __future__ import annotations

from pathlib import Path

import pytest

from capacity.inputs.live_pool import LiveRun
from capacity.inputs.pool_files import Row
from rollcast.cli.capacity import inputs
from rollcast.cli.capacity.inputs import DemandOptions, PoolOptions, checked_pool, demand_file, scenario
from rollcast.runtime.errors import ConfigError, Unreachable
from tests.cli.capacity.small_pool import small_pool

LIVE = LiveRun(
    "local",
    (
        Row(
            "peer cheap-9",
            {
                "worker_id": "cheap-9",
                "donated": True,
                "upload_mbit_per_second": 80.0,
                "download_mbit_per_second": 80.0,
                "tokens_per_second": 100.0,
                "concurrency": 8,
            },
        ),
    ),
    {"t_train_s": 33.0, "staleness_limit": 6},
)


def test_hardware_is_filtered_by_any_of_its_names(tmp_path: Path) -> None:
    small_pool(tmp_path)
    pool, source = checked_pool(PoolOptions(pool=tmp_path / "pool.csv", hardware=("RTX 3090",)))
    assert [row.worker_id for row in pool.taken] == ["donor"]
    assert source.endswith("pool.csv")


def test_assumptions_hold_for_rows_that_do_not_say(tmp_path: Path) -> None:
    small_pool(tmp_path)
    pool, _ = checked_pool(PoolOptions(pool=tmp_path / "pool.csv", assume=("preemptions_per_hour=0.5",)))
    assert {row.preemptions_per_hour for row in pool.taken} == {0.5}


def test_another_model_has_versions_of_another_size(tmp_path: Path) -> None:
    small_pool(tmp_path)
    file, source = demand_file(DemandOptions(demand=tmp_path / "demand.toml", model="qwen3-8b"))
    assert file.demand.update_bytes is None
    assert source.endswith("with options")


def test_what_a_coordinator_measured_counts_more_than_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pool(tmp_path)
    monkeypatch.setattr(inputs, "asked_live", lambda url, ca_file: LIVE)
    options = PoolOptions(pool=tmp_path / "pool.csv", coordinator="http://127.0.0.1:1")
    asked = scenario(options, DemandOptions(demand=tmp_path / "demand.toml", staleness=5))
    assert (asked.demand.t_train_s, asked.demand.staleness_limit) == (33.0, 5)
    assert "cheap-9" in {worker.worker_id for worker in asked.workers}
    assert "what run local measured" in asked.inputs.pool
    alone = scenario(PoolOptions(coordinator="http://127.0.0.1:1"), None)
    assert [worker.worker_id for worker in alone.workers] == ["cheap-9"]


def test_sources_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        scenario(PoolOptions(coordinator="http://127.0.0.1:1"), None)
    with pytest.raises(ConfigError, match="give one of them"):
        scenario(PoolOptions(coordinator="http://127.0.0.1:1", from_run=tmp_path), None)
