"""Test a plan as text, and the difference between two plans."""

from __future__ import annotations

from dataclasses import replace

from capacity.inputs.pool_checks import Filled, Skipped
from capacity.model.assumptions import Assumption
from capacity.planner.planner import plan
from capacity.planner.plans import Row
from capacity.questions.plan_json import Inputs
from capacity.reports.plan import (
    assumption_sheet,
    binding_line,
    candidate_sheet,
    in_order,
    infeasible_lines,
    input_lines,
    row_sheet,
    short_sheet,
    totals_lines,
)
from capacity.reports.plan_diff import diff_sheets, difference
from tests.capacity.sample_plan import infeasible_sample, sample_demand, sample_document, sample_plan, sample_workers


def test_one_row_per_candidate_with_a_tick_on_the_chosen() -> None:
    made = sample_plan()
    sheet = candidate_sheet(made)
    assert len(sheet.rows) == len(made.candidates)
    assert sheet.marked is not None
    assert sum(bool(row[sheet.marked]) for row in sheet.rows) == len(made.chosen)
    assert [row[0] for row in sheet.rows] == sorted((row[0] for row in sheet.rows), reverse=True)


def test_the_order_is_chosen_then_near_then_barred() -> None:
    ordered = in_order(sample_plan().candidates)
    assert [one.barred for one in ordered] == sorted(one.barred for one in ordered)
    off = [one.reduced_usd_per_hour for one in ordered if not one.chosen and not one.barred]
    assert off == sorted(off)


def test_a_screen_shares_rows_and_counts_what_it_leaves_out() -> None:
    made = sample_plan()
    prices = {one.worker.worker_id: one for one in made.candidates}
    alike = [replace(one, worker=replace(one.worker, worker_id=f"{one.worker.worker_id}-{k}")) for one in
             prices.values() for k in (1, 2)]  # fmt: skip
    doubled = replace(made, candidates=tuple(alike))
    sheet = short_sheet(doubled, rows_max=3)
    assert len(sheet.rows) == 3
    assert str(sheet.rows[0][1]).startswith("2 x w-")
    assert "rows more" in sheet.lines[0]


def test_a_screen_shows_reasons_only_where_no_column_does() -> None:
    lines = short_sheet(sample_plan()).lines
    assert [line for line in lines if line.startswith("w-")] == [lines[0]]
    assert lines[0].startswith("w-8: ")
    assert "rollout takes 4000 s" in lines[0]


def test_totals_say_k_of_n_cost_and_certificate() -> None:
    text = " ".join(totals_lines(sample_plan()))
    for word in ("4 of 9 workers", "$/h", "$/step", "T_bcast", "S needed", "utilisation", "LP bound", "gap"):
        assert word in text
    assert totals_lines(infeasible_sample()) == ("0 of 9 workers: infeasible",)


def test_rows_are_in_mbit_and_the_dearest_comes_first() -> None:
    made = sample_plan()
    sheet = row_sheet(made)
    assert sheet.rows[0][0] == "rollouts made / needed"
    uplink = next(row for row in sheet.rows if row[0] == "the origin's uplink")
    assert (uplink[2], uplink[5]) == (1000.0, "Mbit/s")
    assert "one more rollout/s costs" in binding_line(made)
    relay = Row("relay", "", "bytes/s", 1.0, 1.0, False, 2e-6)
    assert "one more Mbit/s saves 0.250 $/h" in binding_line(replace(made, rows=(relay,)))
    assert binding_line(replace(made, rows=())) == ""


def test_an_infeasible_plan_has_a_reason_and_remedies() -> None:
    lines = infeasible_lines(infeasible_sample())
    assert lines[0].startswith("infeasible: the fastest worker's rollout takes")
    assert lines[2] == "  - S: 1 -> 2"
    assert infeasible_lines(sample_plan()) == []
    bare = infeasible_sample()
    assert bare.infeasible is not None
    none_helps = replace(bare, infeasible=replace(bare.infeasible, remedies=()))
    assert "no single change" in infeasible_lines(none_helps)[1]


def test_inputs_and_assumptions_are_reported() -> None:
    skipped = Skipped("line 3", "a", "zero", "usd_per_hour", "0", "only donated")
    inputs = Inputs(
        pool="p.csv", demand="d", model="m", rows=5, skipped=(skipped,), filled=(Filled("gpus", 1, 4, "default"),)
    )
    assert input_lines(inputs) == [
        "pool p.csv: 4 of 5 rows used",
        "Skipped `a`: its price is 0. If it is free, set donated = yes in that row.",
        "taken gpus = 1 by default, in 4 rows",
    ]
    sheet = assumption_sheet([Assumption("efficiency", 0.7, "of the roofline", "fitted", 0.15)])
    assert sheet.rows == (("efficiency", "0.7", "of the roofline", "15%", "fitted"),)


def test_a_plan_does_not_differ_from_itself() -> None:
    diff = difference(sample_document(), sample_document())
    assert not diff.set_changed
    assert (diff.demand, diff.totals, diff.joined, diff.left) == ((), (), (), ())
    assert diff_sheets(diff)[-1].lines == ("0 switched on, 0 off; 0 new in the pool, 0 gone",)


def test_the_difference_has_requests_results_and_switched_workers() -> None:
    workers = [
        replace(worker, usd_per_hour=2.0) if worker.worker_id == "w-0" else worker for worker in sample_workers()
    ]
    after = sample_document(plan(sample_demand(headroom=1.2), [one for one in workers if one.worker_id != "w-1"]))
    diff = difference(sample_document(), after)
    assert [(one.name, one.before, one.after) for one in diff.demand] == [("headroom", "1.05", "1.2")]
    off = {one.worker_id: one.reason for one in diff.switched if not one.on}
    assert off.keys() == {"w-0", "w-1"}
    assert off["w-1"] == "it is no longer in the pool"
    assert diff.left == ("w-1",)
    assert "$/h" in {one.name for one in diff.totals}
    assert [sheet.title for sheet in diff_sheets(diff)] == ["requested", "result", "switched"]
