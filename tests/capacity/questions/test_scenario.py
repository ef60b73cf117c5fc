from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from capacity.catalogue.models import models
from capacity.defaults import DEMAND, POOL, default_text
from capacity.inputs.demand_file import DemandFile, LengthsSection
from capacity.inputs.pool.checks import CheckedPool, check_pool
from capacity.inputs.pool.files import rows_of_csv
from capacity.model.demand import Demand
from capacity.questions.central_machines import central_machines_of
from capacity.questions.scenario import demand_of, lengths_of, model_of, scenario_of
from rollcast.runtime.config import override, parse_config
from rollcast.runtime.errors import ConfigError, PoolError

CONFIGS = Path(__file__).parents[3] / "configs"


def shipped_demand(*settings: str) -> DemandFile:
    values = override(tomllib.loads(default_text(DEMAND)), settings)
    return parse_config(values, DemandFile, source=DEMAND)


def planned_demand(*settings: str) -> Demand:
    file, model = shipped_demand(*settings), models()["qwen3-4b"]
    return demand_of(file, model, central_machines_of(file, model, 2000.0))


def shipped_pool() -> CheckedPool:
    return check_pool(rows_of_csv(default_text(POOL), POOL))


def test_the_shipped_files_are_whole_and_linked_from_configs() -> None:
    pool = shipped_pool()
    assert pool.skipped == ()
    assert (CONFIGS / POOL).read_text() == default_text(POOL)
    assert (CONFIGS / DEMAND).read_text() == default_text(DEMAND)
    scenario = scenario_of(shipped_demand(), pool, demand_source="d", pool_source="p")
    assert len(scenario.workers) == sum(row.count for row in pool.taken)
    assert scenario.inputs.skipped == ()


def test_prices_of_the_shipped_pool_say_where_they_are_from() -> None:
    for row in shipped_pool().taken:
        assert row.donated or (row.price_source and row.price_date)


def test_units_come_out_in_bytes_and_seconds() -> None:
    demand = scenario_of(shipped_demand(), shipped_pool(), demand_source="", pool_source="").demand
    assert demand.learner_upload_bytes_per_second == 125e6
    assert demand.update_bytes == pytest.approx(0.008 * 4_022_468_096 * 2)


def test_a_version_has_the_given_size() -> None:
    for settings, size in (
        (("demand.encoding=keyframe",), 4_022_468_096 * 2),
        (("demand.update_bytes=5e8",), 5e8),
        (("demand.delta_share=0.5",), 4_022_468_096),
        (("demand.adapter_rank=16",), 2_064_384 * 16 * 2),
        (("demand.adapter_rank=16", "demand.adapter_noise=true"), (2_064_384 * 16 + 2 * 36 * 2560) * 2),
        (
            ("demand.publish_every_steps=3", "demand.staleness_limit=8"),
            pytest.approx(0.008 * 3 ** (2 / 3) * 8_044_936_192),
        ),
    ):
        demand = scenario_of(shipped_demand(*settings), shipped_pool(), demand_source="", pool_source="").demand
        assert demand.update_bytes == size


def test_a_worker_that_joins_receives_the_model_where_versions_are_not_whole() -> None:
    for settings, size in (
        (("demand.encoding=keyframe",), 0.0),
        (("demand.encoding=delta",), 4_022_468_096 * 2),
        (("demand.encoding=keyframe", "demand.adapter_rank=16"), 4_022_468_096 * 2),
    ):
        demand = planned_demand(*settings)
        assert demand.join_bytes == size
        assert demand.joining_s(125e6) == pytest.approx(size / 125e6)


def test_adapters_without_noise_finish_beside_newer_ones() -> None:
    for settings, swap in (
        ((), "finish"),
        (("adapter_rank=8",), "keep"),
        (("adapter_rank=8", "adapter_noise=1"), "finish"),
    ):
        given = [f"demand.{one}" for one in ('at_version_swap="finish"', *settings)]
        assert planned_demand(*given).conduct.at_version_swap == swap


def test_rows_too_small_for_the_model_are_counted() -> None:
    scenario = scenario_of(shipped_demand("demand.model=qwen3-14b"), shipped_pool(), demand_source="", pool_source="")
    assert {one.reason for one in scenario.inputs.skipped} == {"does_not_fit"}
    with pytest.raises(PoolError, match="hardware does not fit"):
        scenario_of(shipped_demand("demand.model=qwen3-235b-a22b"), shipped_pool(), demand_source="", pool_source="p")


def test_a_model_whose_adapters_are_not_known_needs_their_size() -> None:
    file = shipped_demand("demand.adapter_rank=8")
    machines = central_machines_of(file, models()["qwen3-4b"], 2000.0)
    with pytest.raises(ConfigError, match="adapters for phi-4"):
        demand_of(file, models()["phi-4"], machines)


def test_unknown_models_and_lengths_are_errors(tmp_path: Path) -> None:
    assert model_of("measured") is None
    with pytest.raises(ConfigError, match="qwen3-8b"):
        model_of("gpt-2")
    with pytest.raises(ConfigError, match="deepseek-r1"):
        lengths_of(LengthsSection(distribution="short"))
    file = tmp_path / "lengths.csv"
    file.write_text("low,high,weight\n1,101,1\n101,201,1\n")
    assert lengths_of(LengthsSection(distribution=str(file), tokens_max=100)).quantile(1.0) == 100
    file.write_text("low,high\n1,2\n")
    with pytest.raises(ConfigError):
        lengths_of(LengthsSection(distribution=str(file)))


def test_assumptions_name_every_figure_with_its_source() -> None:
    scenario = scenario_of(
        shipped_demand("demand.usd_per_hour_max=9", "demand.chance_z=2.33", "demand.share_without_a_region=0.8"),
        shipped_pool(),
        demand_source="",
        pool_source="",
    )
    found = {one.name: one for one in scenario.assumptions}
    for name in ("learner step, T_train", "staleness limit, S", "origin's uplink, U0", "engine's efficiency", "budget"):
        assert found[name].source
    assert found["engine's efficiency"].source == "by hardware, from published timings; 1 without one"
    assert "headroom, phi, at least" not in found
    assert found["learner's machine"].source == "8 x h100-sxm, verda on-demand, 2.29 $/h each"
    assert found["prices"].relative_uncertainty == 0.5
    measured = check_pool(
        rows_of_csv(
            "worker_id,donated,upload_mbit_per_second,download_mbit_per_second,rollouts_per_second,concurrency\n"
            "a,yes,100,100,2,8\n",
            "",
        )
    )
    file = parse_config(
        {"demand": shipped_demand().demand.model_dump() | {"model": "measured", "update_bytes": 1e9, "t_train_s": 45}},
        DemandFile,
        source="",
    )
    scenario = scenario_of(file, measured, demand_source="", pool_source="")
    names = [one.name for one in scenario.assumptions]
    assert "workers with measured speeds" in names
    assert "engine's efficiency" not in names
