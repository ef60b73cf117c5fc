"""Test the inputs of a plan: files, offers of providers, and figures of a finished run."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from capacity.inputs.calibration import calibrate
from capacity.inputs.pool.checks import check_pool
from capacity.inputs.pool.files import Row, rows_of_csv
from capacity.inputs.pool.live import LiveRun
from capacity.inputs.run_records import RunRecords
from capacity.questions.plan_json import json_schema
from capacity.questions.scenario import scenario_of
from capacity.reports.calibrated_pool import calibrated_run, calibration_sheets
from capacity.reports.tables import records_of
from rollcast.cli.capacity import calibrate as capacity_calibrate
from rollcast.cli.capacity import inputs
from rollcast.cli.capacity.inputs import DemandOptions, PoolOptions, checked_pool, demand_file, scenario
from rollcast.cli.capacity.plan import planned
from rollcast.runtime.errors import ConfigError, PoolError, RunFolderError, Unreachable
from tests.capacity.inputs.test_calibration import records
from tests.cli.capacity.capacity_calls import call
from tests.cli.capacity.small_pool import small_pool

CONFIGS = Path(__file__).parents[3] / "configs"
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


def test_measurements_override_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pool(tmp_path)
    monkeypatch.setattr(inputs, "fetch_live", lambda url, ca_file: LIVE)
    options = PoolOptions(pool=tmp_path / "pool.csv", coordinator="http://127.0.0.1:1")
    asked = scenario(options, DemandOptions(demand=tmp_path / "demand.toml", staleness=5))
    assert (asked.demand.t_train_s, asked.demand.staleness_limit) == (33.0, 5)
    assert "cheap-9" in {worker.worker_id for worker in asked.workers}
    assert "measurements of run local" in asked.inputs.pool
    alone = scenario(PoolOptions(coordinator="http://127.0.0.1:1"), None)
    assert [worker.worker_id for worker in alone.workers] == ["cheap-9"]


def test_a_measured_run_is_planned_for_its_own_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped demand's model, swaps and learner are not the run's; measured speeds contain the swaps."""
    row = LIVE.rows[0].values
    timed = {"rollouts_per_second": 4.0, "t_gen_p90_s": 3.0}
    known = {"t_train_s": 2.0, "staleness_limit": 6, "rollouts_per_step": 2, "update_bytes": 1e5}
    live = LiveRun("local", (Row("peer cheap-9", row | timed),), known)
    monkeypatch.setattr(inputs, "fetch_live", lambda url, ca_file: live)
    coordinator = PoolOptions(coordinator="http://127.0.0.1:1")
    asked = scenario(coordinator, None)
    assert (asked.inputs.model, asked.demand.t_swap_s, asked.demand.learner_usd_per_hour) == ("measured", 0.0, 0.0)
    assert planned(asked).plan.feasible
    assert not [one for one in asked.assumptions if one.name.startswith("rollout, ")]
    named = scenario(coordinator, DemandOptions(model="qwen3-4b"))
    assert (named.inputs.model, named.demand.t_swap_s) == ("qwen3-4b", 0.0)
    slow = planned(scenario(coordinator, DemandOptions(setting=("demand.t_swap_s=5",)))).plan
    assert slow.infeasible is not None
    assert slow.infeasible.what == (
        "no worker has time to generate: a swap to a new version stops it for 5 s, and one is published every 2 s"
    )


def test_filters_that_leave_nothing_say_what_there_is(tmp_path: Path) -> None:
    small_pool(tmp_path)
    with pytest.raises(PoolError, match="has the hardware h200") as raised:
        checked_pool(PoolOptions(pool=tmp_path / "pool.csv", hardware=("h200",)))
    assert "rtx-3090" in raised.value.cause
    with pytest.raises(ConfigError, match="--provider narrows machines for rent"):
        checked_pool(PoolOptions(pool=tmp_path / "pool.csv", provider=("lambda",)))


def test_rows_that_all_lack_the_same_columns_get_the_options_that_fill_them_in() -> None:
    rows = "worker_id,rollouts_per_second,concurrency,t_gen_p90_s,egress_usd_per_gb\na,1,8,9,0\n"
    with pytest.raises(PoolError) as raised:
        scenario_of(
            demand_file(DemandOptions())[0],
            check_pool(rows_of_csv(rows, "pool.csv"), {"upload_mbit_per_second": 5}),
            demand_source="",
            pool_source="pool.csv",
        )
    assert raised.value.fix == (
        "add them to the pool, or give one value for all rows: --assume usd_per_hour=VALUE "
        "--assume download_mbit_per_second=VALUE; --assume donated=yes for machines that cost nothing"
    )


def test_a_run_folder_in_the_place_of_a_configuration_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder, and --run takes") as raised:
        demand_file(DemandOptions(run=tmp_path))
    assert f"--from-run {tmp_path}" in raised.value.fix


def test_an_unknown_model_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="no model 'qwen3-5b'") as raised:
        scenario(None, DemandOptions(model="qwen3-5b"))
    assert raised.value.fix.startswith("did you mean 'qwen3-")


def test_missing_sources_are_errors(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        scenario(PoolOptions(coordinator="http://127.0.0.1:1"), None)
    with pytest.raises(ConfigError, match="leave out one of them"):
        scenario(PoolOptions(coordinator="http://127.0.0.1:1", from_run=tmp_path), None)


def test_workers_are_listed_cheapest_first_and_alike_share_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = call(capsys, "offers", *small_pool(tmp_path))
    lines = found.out.splitlines()
    assert found.out.index("donor") < found.out.index("3 x cheap") < found.out.index("3 x dear")
    assert any(line.startswith("8 workers") for line in lines)
    rows = list(csv.DictReader(io.StringIO(call(capsys, "offers", *small_pool(tmp_path), "--format", "csv").out)))
    assert len(rows) == 8


def test_workers_are_filtered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--usd-per-hour-at-most", "0.5", "--region", "la", "--format", "json")
    rows = call(capsys, "offers", *small_pool(tmp_path), *words).json["rows"]
    assert {row["worker_id"] for row in rows} == {"cheap-1", "cheap-2", "cheap-3"}


def test_skipped_rows_are_listed_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "offers", "skipped", *small_pool(tmp_path), "--format", "json")
    assert [(row["worker_id"], row["reason"]) for row in found.json["rows"]] == [("free", "zero")]


@pytest.mark.parametrize("what", ["columns", "demand", "hardware", "models", "lengths", "prices"])
def test_allowed_columns_and_keys_are_listed(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "offers", what, "--format", "json")
    assert len(found.json["rows"]) >= 3
    assert call(capsys, "offers", what).status == 0


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "schema").out == json_schema()


def test_fitted_values_are_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(capacity_calibrate, "read_run", lambda folder: records())
    found = call(capsys, "calibrate", "runs/local")
    assert found.status == 0
    for words in ("t_train_s", "t_bcast_s", "2 peers made enough rollouts"):
        assert words in found.out
    document = call(capsys, "calibrate", "runs/local", "--format", "json").json
    assert document["schema"] == "rollcast.capacity.calibrate/1"
    assert len(document["peers"]) == 2
    for peer in document["peers"]:
        assert 0.0 <= peer["two_standard_errors"] < peer["rollouts_per_second"]
    assert document["demand"]["t_train_s"] > 0


def test_calibrated_run_is_a_pool_once_links_and_prices_are_given() -> None:
    fitted = calibrate(records())
    run = calibrated_run(fitted, "local")
    links = {"upload_mbit_per_second": 500, "download_mbit_per_second": 500}
    bare = check_pool(run.rows, links)
    assert {one.column for one in bare.skipped} == {"usd_per_hour, egress_usd_per_gb"}
    pool = check_pool(run.rows, {**links, "donated": True})
    assert [row.rollouts_per_second for row in pool.taken] == [peer.speed.rollouts_per_second for peer in fitted.peers]
    assert run.demand["t_train_s"] == fitted.t_train_s.value
    assert [sheet.title for sheet in calibration_sheets(fitted)] == ["calibration", "peers"]


def test_a_calibration_names_peers_for_people_and_has_their_ids_for_programs() -> None:
    fitted = calibrate(replace(records(), names={"p0": "garage"}))
    assert [row[0] for row in calibration_sheets(fitted)[1].rows] == ["garage", "p1"]
    peers = records_of(calibration_sheets(fitted, ids=True)[1])
    assert [(one["name"], one["worker_id"]) for one in peers] == [("garage", "p0"), ("p1", "p1")]


def test_calibration_needs_a_few_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(RunFolderError, match="cannot read the records"):
        call(capsys, "calibrate", str(tmp_path))
    monkeypatch.setattr(capacity_calibrate, "read_run", lambda folder: RunRecords({}, {}, (), (), {}, 0.0))
    with pytest.raises(RunFolderError, match="too few for a calibration"):
        call(capsys, "calibrate", str(tmp_path))


def test_a_run_whose_model_is_not_in_the_catalogue_says_for_which_one_it_is_planned() -> None:
    run = CONFIGS / "local.toml"
    file, source = demand_file(DemandOptions(run=run))
    assert f"the run's model is not in the catalogue, so this plans for {file.demand.model}, the demand's" in source
    for options in (DemandOptions(run=run, model="qwen3-8b"), DemandOptions(run=CONFIGS / "qwen3-8b-lora.toml")):
        assert "not in the catalogue" not in demand_file(options)[1]


def test_a_run_with_adapters_is_planned_with_versions_of_adapters() -> None:
    demand = demand_file(DemandOptions(run=CONFIGS / "qwen3-8b-lora.toml"))[0].demand
    assert (demand.model, demand.adapter_rank, demand.adapter_noise) == ("qwen3-8b", 16, False)


def test_a_run_folder_as_the_configuration_names_the_option_for_folders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes the configuration of a run") as caught:
        demand_file(DemandOptions(run=tmp_path))
    assert f"--from-run {tmp_path}" in caught.value.fix
