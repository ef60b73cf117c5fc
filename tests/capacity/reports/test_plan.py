"""Test a plan as text, and the difference between two plans."""

from __future__ import annotations

from dataclasses import replace

from capacity.inputs.pool.checks import Filled, Skipped
from capacity.model.assumptions import Assumption
from capacity.planner.planner import plan
from capacity.planner.plans import Expected, Row, SlackTrial
from capacity.questions.bill import bill_of
from capacity.questions.comparison import Alternative, Comparison
from capacity.questions.horizon import Verdict
from capacity.questions.plan_json import Inputs
from capacity.reports.comparison import comparison_sheet
from capacity.reports.plan import (
    assumption_sheet,
    bill_sheet,
    binding_line,
    candidate_sheet,
    in_order,
    infeasible_lines,
    input_lines,
    row_sheet,
    short_sheet,
    slack_sheet,
    totals_lines,
    verdict_lines,
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
    for word in ("4 of 9 workers", "$/h", "$/step", "T_bcast", "S needed", "utilisation"):
        assert word in text
    assert totals_lines(infeasible_sample()) == ("0 of 9 workers: infeasible",)


def test_the_proof_is_one_phrase() -> None:
    made = replace(sample_plan(), lp_bound_usd_per_hour=0.0, integer_bound_usd_per_hour=0.0)
    cost = made.usd_per_hour
    proven = " ".join(totals_lines(replace(made, integer_bound_usd_per_hour=cost)))
    assert f"proven cheapest: {cost:,.2f} $/h" in proven
    near = " ".join(totals_lines(replace(made, lp_bound_usd_per_hour=cost / 2.0)))
    assert f"no set costs less than {cost / 2.0:,.2f} $/h, 50.0% below this one" in near


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
        "demand d",
        "Skipped `a`: its price is 0. If it is free, set donated = yes in that row.",
        "Filled in gpus = 1 in 4 rows that lack it: the default.",
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


def test_the_bill_has_the_learner_in_it_and_its_rows_sum_up() -> None:
    made = sample_plan()
    made = replace(made, demand=replace(made.demand, learner_usd_per_hour=18.0, storage_usd_per_hour=0.5))
    rows = {str(row[0]): row for row in bill_sheet(made).rows}
    assert rows["learner"][1] == 18.0
    assert rows["in all"][1] == sum(float(str(row[1])) for name, row in rows.items() if name != "in all")
    assert rows["in all"][3] == 100.0
    assert f"whole bill {rows['in all'][1]:,.2f} $/h" in totals_lines(made)[0]


def test_every_slack_that_was_tried_is_shown_with_a_tick_on_the_plans() -> None:
    made = sample_plan()
    assert slack_sheet(made) is None
    phi = made.demand.headroom
    trials = (SlackTrial(phi, 0.0, 5, 0.98, 20.0, 0.25), SlackTrial(phi * 1.1, 0.0, 6, 1.0, 21.0, 0.26))
    sheet = slack_sheet(replace(made, expected=Expected(0.98, 0.0, 1.0, 2.0, trials=trials)))
    assert sheet is not None
    assert [row[0] for row in sheet.rows] == [True, False]
    assert "no price" in sheet.lines[0]
    assert "one short run" in sheet.lines[1]


def test_a_missed_deadline_is_said_with_its_changes() -> None:
    assert verdict_lines(None) == []
    assert verdict_lines(Verdict(True, "60 steps take 1 h", ())) == ["kept: 60 steps take 1 h"]
    lines = verdict_lines(Verdict(False, "60 steps take 1 h", ("steps: 60 -> 30",)))
    assert lines[0] == "infeasible: 60 steps take 1 h"
    assert lines[-1] == "  - steps: 60 -> 30"


def test_savings_stand_beside_what_a_plan_is_compared_with() -> None:
    def way(name: str, usd: float) -> Alternative:
        bill = bill_of(sample_demand(learner_usd_per_hour=usd), 0.0, 0.0, 1.0)
        return Alternative(way=name, machines="", step_s=60.0, utilisation=1.0, bill=bill, plan=None)  # type: ignore[arg-type]

    found = Comparison(model="m", learner="8 x gpu", alternatives=(way("plan", 3.0), way("synchronous", 6.0)))
    sheet = comparison_sheet([found])
    assert [row[-2] for row in sheet.rows] == [None, 50.0]
    assert [row[-1] for row in sheet.rows] == [None, None]
    assert "m is trained on 8 x gpu" in sheet.lines[0]
