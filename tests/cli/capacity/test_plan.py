"""Test `rollcast capacity plan`, and what explains a plan: `explain`, `what-if`, single overrides, plots."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from capacity.defaults import DEMAND, POOL, default_text
from capacity.inputs.demand_file import DemandSection
from capacity.model.demand import Conduct
from coordinator.config.config import LeaseConfig, RunConfig
from coordinator.core.events.operator_events import PublishPeriodChanged, StalenessLimitChanged
from rollcast.cli.capacity import compare, plan
from rollcast.cli.capacity.inputs import DemandOptions, demand_file
from rollcast.cli.capacity.live import change, price
from rollcast.cli.capacity.plan import save
from rollcast.cli.coordinator_api import TOKEN_VARIABLE
from rollcast.cli.start.init import init
from rollcast.runtime.errors import ConfigError, MalformedMessage, PlanFileError, PoolError, RunFolderError
from tests.capacity.sample_plan import sample_document
from tests.cli.capacity.capacity_calls import call
from tests.cli.capacity.small_pool import small_pool
from tests.cli.live.test_operator import run_folder
from tests.coordinator.api.test_operator import Acts
from tests.coordinator.http.serving import Given, served


def test_the_table_has_assumptions_first_then_workers_then_totals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = call(capsys, "plan", *small_pool(tmp_path))
    assert found.status == 0
    words = ["assumptions", "staleness limit, S", "workers", "✓", "$/step", "T_bcast", "S needed", "proven cheapest"]
    places = [found.out.index(word) for word in words]
    assert places[:3] == sorted(places[:3])
    assert "of 8 workers" in found.out
    assert "4 of 5 rows used" in found.err
    assert "Skipped `free`: its price is 0. If it is free, set donated = yes in that row." in found.err


def test_json_is_alone_on_stdout(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Capture file descriptors, since a solver's own lines bypass sys.stdout."""
    found = call(capfd, "plan", *small_pool(tmp_path), "--format", "json")
    document = found.json
    assert document["schema"] == "rollcast.capacity.plan/2"
    assert document["inputs"]["skipped"][0]["reason"] == "zero"
    assert document["totals"]["chosen"] >= 3
    assert document["totals"]["usd_per_hour"] >= document["plan"]["lp_bound_usd_per_hour"]


def test_csv_has_a_row_for_every_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "plan", *small_pool(tmp_path), "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(found.out)))
    assert len(rows) == 8
    assert {row["chosen"] for row in rows} == {"0", "1"}


def test_html_is_a_page_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "plan", *small_pool(tmp_path), "--format", "html", "--steps", "10")
    assert found.out.startswith("<!doctype html>")
    assert "forecast" in found.out


def test_an_infeasible_plan_has_a_reason_and_remedies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "plan", *small_pool(tmp_path), "--staleness", "1")
    assert found.status == 2
    assert "infeasible: " in found.out
    assert "S: 1 -> 3" in found.out
    assert call(capsys, "plan", *small_pool(tmp_path), "--staleness", "1", "--format", "csv").status == 2
    page = call(capsys, "plan", *small_pool(tmp_path), "--staleness", "1", "--format", "html").out
    assert "S: 1 -&gt; 3" in page


def test_options_count_more_than_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--kappa", "2", "--uplink", "0.5Gbit/s", "--topology", "tree", "--set", "demand.headroom=1.5")
    demand = call(capsys, "plan", *small_pool(tmp_path), *words, "--format", "json").json["plan"]["demand"]
    assert (demand["publish_every_steps"], demand["learner_upload_bytes_per_second"]) == (2, 62.5e6)
    assert (demand["topology"]["shape"], demand["headroom"]) == ("tree", 1.5)


def test_a_forecast_has_the_learner_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "plan", *small_pool(tmp_path), "--steps", "60", "--format", "json").json
    assert found["forecast"]["learner_usd"]["p50"] == pytest.approx(2.0, rel=0.3)
    assert found["forecast"]["coordinator_usd"]["p50"] > 0
    assert found["verdict"] is None
    assert found["totals"]["bill"]["learner_usd_per_hour"] == 2.0
    assert found["totals"]["usd_per_hour"] > 2.0


def test_a_deadline_and_a_budget_are_kept_at_the_median_or_the_least_changes_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*small_pool(tmp_path), "--steps", "60")
    found = call(capsys, "plan", *options, "--deadline", "100h", "--budget", "$50")
    assert found.status == 0
    assert "the deadline is kept in 100% of the samples" in found.out
    assert "kept: 60 steps take" in found.out
    found = call(capsys, "plan", *options, "--deadline", "30m")
    assert found.status == 2
    assert "infeasible: 60 steps take" in found.out
    for words in ("deadline: 0.5 ->", "steps: 60 ->"):
        assert words in found.out
    verdict = call(capsys, "plan", *options, "--budget", "0.5usd", "--format", "json").json["verdict"]
    assert not verdict["kept"]
    assert any(remedy.startswith("budget: 0.5 ->") for remedy in verdict["remedies"])


def test_a_change_that_is_named_keeps_the_deadline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = small_pool(tmp_path)
    found = call(capsys, "plan", *options, "--steps", "60", "--deadline", "45m", "--format", "json").json["verdict"]
    changes = dict(remedy.split(": ", 1) for remedy in found["remedies"])
    steps = changes["steps"].split(" -> ")[1]
    assert call(capsys, "plan", *options, "--steps", steps, "--deadline", "45m").status == 0
    hours = changes["deadline"].split(" -> ")[1].replace(" ", "")
    assert call(capsys, "plan", *options, "--steps", "60", "--deadline", hours).status == 0


def test_invalid_options_fail_before_planning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = small_pool(tmp_path)
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        call(capsys, "plan", *options, "--plot", "plan.gif")
    with pytest.raises(ConfigError, match="--steps"):
        call(capsys, "plan", *options, "--steps", "0")
    with pytest.raises(ConfigError, match="--budget is for a number"):
        call(capsys, "plan", *options, "--budget", "5usd")
    with pytest.raises(ConfigError, match="amount of money"):
        call(capsys, "plan", *options, "--steps", "5", "--budget", "cheap")
    with pytest.raises(PoolError, match="no pool at"):
        call(capsys, "plan", "--pool", str(tmp_path / "none.csv"))


def test_a_demand_that_is_a_run_or_has_an_unknown_key_names_what_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.toml"
    run.write_text("[coordinator.run]\nsteps = 3\n")
    with pytest.raises(ConfigError, match="the configuration of a run, not a demand") as caught:
        call(capsys, "plan", "--demand", str(run))
    assert f"--run {run}" in caught.value.fix
    with pytest.raises(ConfigError, match="problem") as caught:
        call(capsys, "plan", "--staleness", "0")
    assert "`rollcast capacity offers demand` lists every key" in caught.value.fix


def test_the_starting_point_of_the_planner_is_its_shipped_example(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init("plan", into=tmp_path) == 0
    assert "rollcast capacity plan --pool pool.csv --demand demand.toml --out plan.json" in capsys.readouterr().out
    assert (tmp_path / POOL).read_text() == default_text(POOL)
    assert demand_file(DemandOptions(demand=tmp_path / DEMAND))[0] == demand_file(DemandOptions())[0]


def test_a_missing_plan_names_the_command_that_writes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PlanFileError, match="cannot read") as caught:
        call(capsys, "explain", str(tmp_path / "plan.json"))
    assert "`rollcast capacity plan --out plan.json` writes one" in caught.value.fix


def test_the_shipped_pool_and_demand_make_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--set", "demand.rollouts_per_step=64", "--set", "demand.t_train_s=30")  # few rollouts to predict
    found = call(capsys, "plan", *small)
    assert found.status == 0
    assert "configs/pool.csv" in found.err
    assert "Skipped" not in found.err


def test_explanation_has_binding_rows_next_worker_and_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = call(capsys, "explain", *small_pool(tmp_path))
    assert found.status == 0
    for words in ("what limits the set", "one more rollout/s costs", "first left out", "single changes", "prime-rl"):
        assert words in found.out
    assert "The smallest S for this pool is" in found.out


def test_a_plan_in_a_file_is_explained_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    file.write_text(call(capsys, "plan", *small_pool(tmp_path), "--format", "json").out)
    document = call(capsys, "explain", str(file), "--format", "json").json
    assert document["schema"] == "rollcast.capacity.explain/1"
    assert document["binding"][0] == "rate"
    assert document["smallest_staleness"] <= 4
    assert document["one_more_dollar"]["rollouts_per_second"] > 0


def test_progress_is_shown_on_a_terminal_beside_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    call(capsys, "plan", *small_pool(tmp_path), "--out", str(file))
    assert "planning" not in call(capsys, "explain", str(file), "--format", "json").err
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any output for a terminal then
    monkeypatch.setenv("TERM", "xterm")
    found = call(capsys, "explain", str(file), "--format", "json")
    assert found.json["binding"][0] == "rate"
    assert "planning" in found.err


def test_a_plan_is_saved_beside_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    found = call(capsys, "plan", *small_pool(tmp_path), "--out", str(file))
    assert "staleness limit, S" in found.out
    assert f"`rollcast capacity validate {file}`" in found.err
    assert call(capsys, "explain", str(file)).status == 0


def test_a_plan_is_saved_although_the_reader_of_its_table_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `rollcast capacity plan --out plan.json | head`."""
    file = tmp_path / "plan.json"
    monkeypatch.setattr("rollcast.cli.capacity.plan.print_sheets", Mock(side_effect=BrokenPipeError))
    with pytest.raises(BrokenPipeError):
        call(capsys, "plan", *small_pool(tmp_path), "--out", str(file))
    monkeypatch.undo()
    assert call(capsys, "explain", str(file)).status == 0


def test_an_infeasible_plan_is_saved_without_a_promise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my plan.json"
    found = call(capsys, "plan", *small_pool(tmp_path), "--staleness", "1", "--out", str(file))
    assert found.status == 2
    assert f"`rollcast capacity explain '{file}'`" in found.err
    assert "validate" not in found.err
    assert "infeasible: " in call(capsys, "explain", str(file)).out


def test_an_error_of_saving_names_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "plan.json"
    with pytest.raises(RunFolderError, match=re.escape(f"cannot write the plan {file}")) as refused:
        save(file, sample_document())
    assert "run folder" not in str(refused.value)
    assert not file.parent.exists()


def test_the_largest_model_of_a_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "explain", *small_pool(tmp_path), "--largest-model")
    assert "The largest model of the catalogue with a sufficient set is" in found.out
    with pytest.raises(ConfigError, match="needs a pool"):
        call(capsys, "explain", str(tmp_path / "plan.json"), "--largest-model")


def test_an_infeasible_plan_has_remedies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = small_pool(tmp_path)
    found = call(capsys, "explain", *options, "--staleness", "1")
    assert (found.status, "S: 1 -> 3" in found.out) == (2, True)
    document = call(capsys, "explain", *options, "--staleness", "1", "--format", "json").json
    assert not document["feasible"]
    assert "S: 1 -> 3" in document["remedies"]


def test_every_combination_has_a_row_and_the_cheapest_a_tick(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--staleness", "1..3", "--topology", "stripes=8,star", "--format", "json")
    found = call(capsys, "what-if", *small_pool(tmp_path), *words)
    rows = found.json["variants"]
    assert (found.status, len(rows)) == (0, 6)
    feasible = [row for row in rows if row["infeasible"] is None]
    best = next(row for row in rows if row["cheapest"])
    assert best["usd_per_step"] == min(row["usd_per_step"] for row in feasible)
    assert all(row["infeasible"] for row in rows if row["staleness"] == 1)


def test_plots_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plots = (tmp_path / "s.svg", tmp_path / "b.svg")
    words = ("--staleness", "2,4", "--plot", str(plots[0]), "--plot-broadcast", str(plots[1]))
    assert call(capsys, "what-if", *small_pool(tmp_path), *words).status == 0
    assert all(plot.read_text().startswith("<?xml") for plot in plots)


def test_nothing_feasible_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "what-if", *small_pool(tmp_path), "--staleness", "1")
    assert (found.status, "0 of 1 are feasible" in found.out) == (2, True)


def test_unvaried_values_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = small_pool(tmp_path)
    with pytest.raises(ConfigError, match="no value is varied"):
        call(capsys, "what-if", *options)
    with pytest.raises(ConfigError, match="not varied"):
        call(capsys, "what-if", *options, "--kappa", "1,2", "--plot", str(tmp_path / "s.png"))


async def test_settings_are_shown_previewed_and_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    acts = Acts()
    async with served(tmp_path, Given(routes=acts.routes)) as page:
        run = run_folder(tmp_path / "run", page.url)
        await asyncio.to_thread(change, run=run)
        assert capsys.readouterr().out.splitlines() == [
            "S                 3  0 to 10 can be set",
            "kappa             1  1 to 4 can be set",
            "$/h at most       no limit",
            "$ total at most   no limit",
        ]
        await asyncio.to_thread(change, staleness_limit=2, preview=True, run=run)
        assert capsys.readouterr().out.startswith("fewer")
        assert acts.orders == []
        await asyncio.to_thread(change, publish_every_steps="auto", usd_per_hour_max="2.5", run=run, json_output=True)
        said = json.loads(capsys.readouterr().out)
        assert (said["publish_every_steps"]["auto"], said["usd_per_hour_max"]["value"]) == (True, 2.5)
        await asyncio.to_thread(change, publish_every_steps="2", usd_per_hour_max="none", run=run)
        assert "kappa             2 " in capsys.readouterr().out
        await asyncio.to_thread(change, usd_total_max="5", run=run)
        assert '$ total at most   5  has no effect: capacity.mode is "off"' in capsys.readouterr().out
        with pytest.raises(MalformedMessage, match="S can be set"):
            await asyncio.to_thread(change, staleness_limit=11, run=run)
        await asyncio.to_thread(change, staleness_limit=2, run=run)
        capsys.readouterr()
        await asyncio.to_thread(price, 2.0, name="a", run=run)
        assert capsys.readouterr().out.startswith("2 $/h for peers with name a, from now on.\nThe run has 1 price;")
        await asyncio.to_thread(price, 2.0, hardware="A1000", run=run)
        assert "None of the 2 peers that are connected matches" in capsys.readouterr().out
    assert acts.orders[0] == PublishPeriodChanged(0)
    assert acts.orders[-3] == StalenessLimitChanged(2)
    for wrong in ({"publish_every_steps": "often"}, {"usd_total_max": "much"}):
        with pytest.raises(ConfigError, match="neither"):
            change(**wrong, run=run)  # type: ignore[arg-type]


def test_utilisation_is_plotted_against_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[float, float | None]] = []
    draw = plan.utilisation_against_workers

    def keep(path: Path, curve: list[plan.Point], chosen: int, subtitle: str) -> None:
        drawn.extend((point.x, point.y) for point in curve)
        draw(path, curve, chosen, subtitle)

    monkeypatch.setattr(plan, "utilisation_against_workers", keep)
    monkeypatch.setattr(plan, "_POINTS", 3)
    assert call(capsys, "plan", *small_pool(tmp_path), "--plot", str(tmp_path / "u.svg")).status == 0
    assert (tmp_path / "u.svg").read_text().startswith("<?xml")
    assert drawn[0] == (0, 0.0)
    assert drawn[-1][1] == pytest.approx(1.0, abs=0.1)


def test_a_plan_takes_its_conduct_from_the_configuration_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.toml"
    path.write_text(
        "[run]\ngroups_per_step = 4\nsamples_per_group = 6\nstaleness_limit = 7\npublish_every_steps = 2\n"
        '[lease]\nat_version_swap = "finish"\nlead_margin_steps = 0.75\n[sampling]\nnew_tokens_max = 123\n'
    )
    file, source = demand_file(DemandOptions(run=path))
    found = file.demand
    assert (found.rollouts_per_step, found.samples_per_group, found.staleness_limit) == (24, 6, 7)
    assert (found.publish_every_steps, found.at_version_swap, found.lead_margin_steps) == (2, "finish", 0.75)
    assert file.lengths.tokens_max == 123
    assert str(path) in source


def test_the_demand_has_the_defaults_of_the_coordinator() -> None:
    lease, demand = LeaseConfig(), DemandSection.model_fields
    for name in ("at_version_swap", "lead_margin_steps", "prefetch_batches", "prefetch_s", "reconnect_grace_s"):
        assert demand[name].default == getattr(lease, name) == getattr(Conduct(), name)
    assert demand["samples_per_group"].default == RunConfig().samples_per_group


def test_a_plan_is_compared_with_the_learners_class_of_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("demand.rollouts_per_step=32", "demand.samples_per_group=8", "demand.t_train_s=30")
    options = [option for word in words for option in ("--set", word)]
    found = call(capsys, "compare", *options, "--staleness", "6", "--format", "json").json
    assert found["schema"] == compare.SCHEMA == "rollcast.capacity.compare/1"
    rows = {row["way"]: row for row in found["rows"]}
    central = rows["synchronous, on the learner's GPUs"]
    assert central["plan_saves_percent"] >= central["rented_saves_percent"]
    assert rows["this plan"]["plan_saves_percent"] is None
    assert "rent GPUs one by one" in found["assumed"]
