from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.inputs import pool_checks
from capacity.inputs.pool_checks import check_pool, filled_line, skipped_lines
from capacity.inputs.pool_columns import RULES, Record
from capacity.inputs.pool_files import Row
from rollcast.runtime.errors import PoolError

GOOD: Record = {
    "worker_id": "a",
    "usd_per_hour": "0.4",
    "upload_mbit_per_second": 500,
    "download_mbit_per_second": "900.5",
    "egress_usd_per_gb": "0",
    "hardware": "L4",
}


def row(**changes: object) -> Row:
    values = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    return Row("line 2", values)  # type: ignore[arg-type]


def test_a_good_row_is_taken_with_its_units() -> None:
    pool = check_pool([row(gpus=2, relays="no", count="3")])
    (taken,) = pool.taken
    assert (taken.usd_per_hour, taken.upload_mbit_per_second, taken.gpus, taken.relays) == (0.4, 500.0, 2, False)
    assert taken.worker_ids == ("a-1", "a-2", "a-3")
    assert pool.skipped == ()


@pytest.mark.parametrize(
    ("changes", "reason", "column"),
    [
        ({"worker_id": None}, "missing", "worker_id"),
        ({"usd_per_hour": None}, "missing", "usd_per_hour"),
        ({"usd_per_hour": "0"}, "zero", "usd_per_hour"),
        ({"usd_per_hour": "-1"}, "absurd", "usd_per_hour"),
        ({"usd_per_hour": "2 dollars"}, "not_a_number", "usd_per_hour"),
        ({"usd_per_hour": "inf"}, "absurd", "usd_per_hour"),
        ({"usd_per_hour": "nan"}, "not_a_number", "usd_per_hour"),
        ({"usd_per_hour": True}, "not_a_number", "usd_per_hour"),
        ({"upload_mbit_per_second": 0}, "zero", "upload_mbit_per_second"),
        ({"upload_mbit_per_second": 5e8}, "absurd", "upload_mbit_per_second"),
        ({"egress_usd_per_gb": None}, "missing", "egress_usd_per_gb"),
        ({"egress_usd_per_gb": 90}, "absurd", "egress_usd_per_gb"),
        ({"gpus": "1.5"}, "not_a_number", "gpus"),
        ({"hardware": None}, "missing", "hardware"),
        ({"tokens_per_second": 900}, "missing", "concurrency"),
        ({"spot": "yes"}, "missing", "preemptions_per_hour"),
        ({"pin": "maybe"}, "not_a_choice", "pin"),
        ({"relays": "perhaps"}, "not_a_choice", "relays"),
    ],
)
def test_what_is_missing_zero_or_absurd_is_skipped(changes: dict[str, object], reason: str, column: str) -> None:
    pool = check_pool([row(**changes)])
    assert pool.taken == ()
    assert [(one.reason, one.column) for one in pool.skipped] == [(reason, column)]


def test_a_donated_machine_costs_nothing() -> None:
    pool = check_pool([row(donated="yes", usd_per_hour=None, egress_usd_per_gb=None)])
    assert (pool.taken[0].usd_per_hour, pool.taken[0].egress_usd_per_gb) == (0.0, 0.0)
    assert "usd_per_hour = 0.0 as it is donated, in 1 row" in [filled_line(one) for one in pool.filled]


def test_assumptions_fill_what_is_empty_only_and_are_counted() -> None:
    rows = [row(), row(worker_id="b", egress_usd_per_gb=None), row(worker_id="c", egress_usd_per_gb=None)]
    pool = check_pool(rows, {"egress_usd_per_gb": "0.09"})
    assert [row.egress_usd_per_gb for row in pool.taken] == [0.0, 0.09, 0.09]
    assert "egress_usd_per_gb = 0.09 as assumed, in 2 rows" in [filled_line(one) for one in pool.filled]
    absurd = check_pool(rows, {"egress_usd_per_gb": "9"})
    assert [one.reason for one in absurd.skipped] == ["absurd", "absurd"]


def test_defaults_that_matter_are_told() -> None:
    filled = {one.column: one.value for one in check_pool([row(spot=True, preemptions_per_hour=0.5)]).filled}
    assert filled == {"gpus": 1, "relays": True, "lost_per_preemption_s": 300.0}


def test_names_are_unique_counted_ones_too() -> None:
    pool = check_pool([row(count=2), row(worker_id="a-2"), row(worker_id="b")])
    assert [row.worker_id for row in pool.taken] == ["a", "b"]
    assert pool.skipped[0].reason == "duplicate"


def test_the_summary_counts_by_reason() -> None:
    pool = check_pool([*(row(worker_id=f"w{number}", usd_per_hour=0) for number in range(5)), row(worker_id=None)])
    first, second = skipped_lines(pool.skipped)
    assert first == (
        "Skipped 5 rows (`w0`, `w1`, `w2` and 2 more): their price is 0. "
        "If they are free, set donated = yes in those rows."
    )
    assert second.startswith("Skipped `line 2`: worker_id is missing")


def test_a_row_that_is_skipped_says_what_would_be_believed() -> None:
    free = check_pool([row(worker_id="lab", usd_per_hour=0)]).skipped
    assert skipped_lines(free) == ["Skipped `lab`: its price is 0. If it is free, set donated = yes in that row."]
    absurd = check_pool([row(worker_id="lab", gpus=-3)]).skipped
    assert skipped_lines(absurd)[0].startswith("Skipped `lab` (-3): gpus is absurd: believed from")


def test_a_pool_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_checks, "WORKERS_MAX", 10)
    with pytest.raises(PoolError, match="more than 10"):
        check_pool([row(count=11)])


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(sorted(RULES)), st.sampled_from(["", "x", "-1", "nan", True, False, 0, 3, 0.5, 1e12, 1e-9])
        ),
        max_size=5,
    )
)
def test_every_row_is_taken_or_skipped(records: list[Record]) -> None:
    rows = [Row(f"line {number}", {**GOOD, **record}) for number, record in enumerate(records)]
    pool = check_pool(rows)
    assert len(pool.taken) + len(pool.skipped) == pool.rows == len(rows)
    for taken in pool.taken:
        assert taken.usd_per_hour > 0 or taken.donated
        assert 0 < taken.upload_mbit_per_second < 1e6
