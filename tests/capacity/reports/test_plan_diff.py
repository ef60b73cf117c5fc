from __future__ import annotations

from dataclasses import replace

from capacity.planner.planner import plan
from capacity.reports.plan_diff import diff_sheets, difference
from tests.capacity.sample_plan import sample_demand, sample_document, sample_workers


def test_a_plan_does_not_differ_from_itself() -> None:
    diff = difference(sample_document(), sample_document())
    assert not diff.set_changed
    assert (diff.demand, diff.totals, diff.joined, diff.left) == ((), (), (), ())
    assert diff_sheets(diff)[-1].lines == ("0 switched on, 0 off; 0 new in the pool, 0 gone",)


def test_what_was_asked_what_comes_out_and_who_was_switched() -> None:
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
    assert [sheet.title for sheet in diff_sheets(diff)] == ["asked for", "comes out", "switched"]
