"""Test pools of workers from files: rows read, rows refused with the reason, and speeds given or left out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from capacity.catalogue.models import model_named
from capacity.inputs.pool import checks
from capacity.inputs.pool.checks import check_pool, filled_line, skipped_lines
from capacity.inputs.pool.columns import RULES, Record, Value
from capacity.inputs.pool.files import Row, assumed_values, read_pool, rows_of_csv, rows_of_toml
from capacity.inputs.pool.rows import PoolRow
from capacity.inputs.pool.speeds import Rollouts, workers_of
from capacity.inputs.pool.starts import sky_accelerators
from capacity.model.lengths import LengthDistribution
from rollcast.runtime.errors import PoolError

CSV = """# prices of 1 November
worker_id,usd_per_hour,upload_mbit_per_second

a,0.4,500
"b, the second",,40
"""


def test_csv_rows_have_their_line_and_no_empty_cells() -> None:
    first, second = rows_of_csv(CSV, "pool.csv")
    assert (first.where, first.values) == (
        "line 4",
        {"worker_id": "a", "usd_per_hour": "0.4", "upload_mbit_per_second": "500"},
    )
    assert second.values == {"worker_id": "b, the second", "upload_mbit_per_second": "40"}


def test_files_of_spreadsheets_are_read(tmp_path: Path) -> None:
    text = "worker_id;price;gpu_name;upload_mbps\na;0,45;NVIDIA GeForce RTX 4090;1000\n"
    values = {"worker_id": "a", "usd_per_hour": "0.45", "hardware": "NVIDIA GeForce RTX 4090"}
    values["upload_mbit_per_second"] = "1000"
    (tmp_path / "pool.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [row.values for row in read_pool(tmp_path / "pool.csv")] == [values]
    tabs = text.replace("0,45", "0.45").replace(";", "\t")
    assert [row.values for row in rows_of_csv(tabs, "")] == [values]


SHEET = {"memory_gb": 24, "bandwidth_gb_s": 936, "tflops_bf16": 71}


def test_three_figures_let_any_accelerator_in() -> None:
    (unknown,) = workers_of(rows(hardware="Abacus 9000", **SHEET), ROLLOUTS).workers
    (unnamed,) = workers_of(rows(hardware=None, **SHEET), ROLLOUTS).workers
    assert unknown.speeds == unnamed.speeds
    (faster,) = workers_of(rows(hardware="Abacus 9000", **SHEET | {"bandwidth_gb_s": 1872}), ROLLOUTS).workers
    assert faster.speeds[0].rollouts_per_second > 1.5 * unknown.speeds[0].rollouts_per_second
    (missing,) = workers_of(rows(hardware="Abacus 9000", memory_gb=24), ROLLOUTS).skipped
    assert "bandwidth_gb_s" in missing.detail
    (stated,) = workers_of(rows(hardware="l4", bandwidth_gb_s=600), ROLLOUTS).workers
    (known,) = workers_of(rows(hardware="l4"), ROLLOUTS).workers
    assert stated.speeds[0].rollouts_per_second > known.speeds[0].rollouts_per_second


def test_a_cloud_regions_traffic_has_its_list_price() -> None:
    pool = check_pool([row(egress_usd_per_gb=None, region="aws:us-east-1"), row(worker_id="b", region="aws:us-east-1")])
    assert [one.egress_usd_per_gb for one in pool.taken] == [0.09, 0.0]
    (line,) = [filled_line(one) for one in pool.filled if one.column == "egress_usd_per_gb"]
    assert line == "egress_usd_per_gb = 0.09 in 1 row that lacks it: the region's list price"


def test_all_missing_columns_are_named_at_once() -> None:
    pool = check_pool([row(usd_per_hour=None, egress_usd_per_gb=None, spot="yes")])
    (line,) = skipped_lines(pool.skipped)
    assert "usd_per_hour, egress_usd_per_gb, preemptions_per_hour are missing" in line


@given(st.text(max_size=200), st.sampled_from([rows_of_csv, rows_of_toml]))
def test_any_text_is_a_pool_or_an_error(text: str, parse: Callable[[str, str], list[Row]]) -> None:
    with contextlib.suppress(PoolError):
        rows = parse(text, "pool")
        assert len(check_pool(rows).skipped) == len(rows)


def test_toml_has_defaults_under_each_worker() -> None:
    text = (
        '[defaults]\nusd_per_hour = 0.5\n[[worker]]\nworker_id = "a"\n[[worker]]\nworker_id = "b"\nusd_per_hour = 1\n'
    )
    assert [row.values["usd_per_hour"] for row in rows_of_toml(text, "pool.toml")] == [0.5, 1]


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(sorted(RULES)),
            st.text(st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters='#",'), min_size=1).map(
                str.strip
            ),
            min_size=1,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_csv_and_toml_say_the_same(workers: list[dict[str, str]]) -> None:
    workers = [{name: value for name, value in worker.items() if value} for worker in workers]
    names = list(RULES)
    lines = [",".join(names), *(",".join(worker.get(name, "") for name in names) for worker in workers)]
    of_csv = [row.values for row in rows_of_csv("\n".join(lines), "")]
    assert of_csv == [row.values for row in rows_of_toml(tomli_w.dumps({"worker": workers}), "")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worker_id,upload_rate\na,3\n", "did you mean 'upload_mbit_per_second'"),
        ("worker_id,price,usd_per_hour\na,3,3\n", "'usd_per_hour' as 'price' and as 'usd_per_hour' twice"),
        ("worker_id,worker_id\na,b\n", "twice"),
        ("worker_id,region\na\n", "line 2 has 1 cells, the header 2"),
        ('worker_id\n"a\n', "not CSV"),
        ('worker_id,region\n"a\nb",c\n', "line break"),
    ],
)
def test_malformed_csv_is_an_error(text: str, message: str) -> None:
    with pytest.raises(PoolError, match=message):
        rows_of_csv(text, "pool.csv")


@pytest.mark.parametrize(
    "text", ["worker = 3", "[workers]\n", "[[worker]]\nspeed = 3\n", "[[worker]]\nname = []\n", "a"]
)
def test_toml_that_is_no_pool_is_an_error(text: str) -> None:
    with pytest.raises(PoolError):
        rows_of_toml(text, "pool.toml")


def test_files_that_are_no_pool_are_errors(tmp_path: Path) -> None:
    for name, content in {"pool.xls": "", "pool.csv": "worker_id\n", "pool.toml": "", "other.csv": "\n"}.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(PoolError):
            read_pool(tmp_path / name)
    with pytest.raises(PoolError, match="no pool at"):
        read_pool(tmp_path / "missing.csv")


def test_assumptions_name_columns() -> None:
    assert assumed_values(["upload_mbit_per_second=500"]) == {"upload_mbit_per_second": "500"}
    for wrong in ("upload=3", "region", "region="):
        with pytest.raises(PoolError):
            assumed_values([wrong])


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
    assert "usd_per_hour = 0.0 in 1 row that lacks it: donated" in [filled_line(one) for one in pool.filled]


def test_assumptions_fill_what_is_empty_only_and_are_counted() -> None:
    rows = [row(), row(worker_id="b", egress_usd_per_gb=None), row(worker_id="c", egress_usd_per_gb=None)]
    pool = check_pool(rows, {"egress_usd_per_gb": "0.09"})
    assert [row.egress_usd_per_gb for row in pool.taken] == [0.0, 0.09, 0.09]
    assert "egress_usd_per_gb = 0.09 in 2 rows that lack it: as assumed" in [filled_line(one) for one in pool.filled]
    absurd = check_pool(rows, {"egress_usd_per_gb": "9"})
    assert [one.reason for one in absurd.skipped] == ["absurd", "absurd"]


def test_defaults_that_matter_are_reported() -> None:
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


def test_a_skipped_row_is_shown_with_the_accepted_values() -> None:
    free = check_pool([row(worker_id="lab", usd_per_hour=0)]).skipped
    assert skipped_lines(free) == ["Skipped `lab`: its price is 0. If it is free, set donated = yes in that row."]
    absurd = check_pool([row(worker_id="lab", gpus=-3)]).skipped
    assert skipped_lines(absurd)[0].startswith("Skipped `lab` (-3): gpus is absurd: accepted from")


def test_a_pool_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "WORKERS_MAX", 10)
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


LENGTHS = LengthDistribution.from_lengths([100] * 8 + [300] * 2)

ROLLOUTS = Rollouts(
    model=model_named("qwen3-4b"), lengths=LENGTHS, prompt_tokens=100, efficiency=0.7, concurrencies=(1, 8, 64)
)


def rows(**changes: Value) -> tuple[PoolRow, ...]:
    values: dict[str, Value] = {
        "worker_id": "a",
        "usd_per_hour": 1.0,
        "upload_mbit_per_second": 80,
        "download_mbit_per_second": 160,
        "egress_usd_per_gb": 0.0,
        **changes,
    }
    return check_pool([Row("line 2", values)]).taken


def test_measured_rollouts_follow_littles_law() -> None:
    pool = workers_of(rows(rollouts_per_second=2.0, concurrency=16), ROLLOUTS)
    (speed,) = pool.workers[0].speeds
    assert (speed.rollouts_per_second, speed.t_gen_mean_s) == (2.0, 8.0)
    assert speed.t_gen_p90_s == pytest.approx(8.0 * 300 / 140, rel=0.01)
    assert pool.measured == 1


def test_measured_tokens_become_rollouts_by_the_mean_length() -> None:
    (speed,) = workers_of(rows(tokens_per_second=280, concurrency=4, t_gen_p90_s=9), ROLLOUTS).workers[0].speeds
    assert (speed.rollouts_per_second, speed.t_gen_mean_s, speed.t_gen_p90_s) == (2.0, 2.0, 9.0)


def test_speeds_are_estimated_and_more_hardware_is_faster() -> None:
    one, four = (workers_of(rows(hardware="rtx-4090", gpus=gpus), ROLLOUTS).workers[0] for gpus in (1, 4))
    assert [speed.concurrency for speed in one.speeds] == [1, 8, 64]
    for alone, together in zip(one.speeds, four.speeds, strict=True):
        assert together.rollouts_per_second == pytest.approx(4 * alone.rollouts_per_second)
        assert together.t_gen_p90_s == alone.t_gen_p90_s
    assert (one.hardware, four.hardware) == ("rtx-4090", "4 x rtx-4090")
    assert (one.upload_bytes_per_second, one.download_bytes_per_second) == (10e6, 20e6)


def test_a_model_that_fits_no_accelerator_is_divided_among_the_machines() -> None:
    large = replace(ROLLOUTS, model=model_named("qwen3-32b"))
    assert [one.reason for one in workers_of(rows(hardware="rtx-4090"), large).skipped] == ["does_not_fit"]
    (worker,) = workers_of(rows(hardware="rtx-4090", gpus=4), large).workers
    assert [speed.concurrency for speed in worker.speeds] == [1, 8, 64]
    alone, shared = (workers_of(rows(hardware="rtx-4090", gpus=gpus), ROLLOUTS).workers[0] for gpus in (1, 4))
    assert (
        worker.speeds[0].rollouts_per_second
        < shared.speeds[0].rollouts_per_second
        == pytest.approx(4 * alone.speeds[0].rollouts_per_second)
    ), "a model that fits has a copy on each"


def test_without_a_timed_engine_the_hardware_has_the_catalogues_efficiency() -> None:
    def rate(rollouts: Rollouts) -> float:
        return workers_of(rows(hardware="l40s"), rollouts).workers[0].speeds[0].rollouts_per_second

    assert rate(replace(ROLLOUTS, efficiency=None)) / rate(ROLLOUTS) == pytest.approx(1.0457 / 0.7, rel=0.001)


CATALOGUE = replace(ROLLOUTS, efficiency=None)


def test_copies_may_be_shared_among_accelerators_and_held_in_fewer_bits() -> None:
    (alone,) = workers_of(rows(hardware="l4", gpus=4), CATALOGUE).workers
    (shared,) = workers_of(rows(hardware="l4", gpus=4, tensor_parallel=2), CATALOGUE).workers
    assert [one.concurrency for one in alone.speeds] == [4 * one for one in CATALOGUE.concurrencies]
    assert [one.concurrency for one in shared.speeds] == [2 * one for one in CATALOGUE.concurrencies]
    assert shared.speeds[0].t_gen_p90_s < alone.speeds[0].t_gen_p90_s
    (small,) = workers_of(rows(hardware="rtx-4090", weights="int4"), CATALOGUE).workers
    (whole,) = workers_of(rows(hardware="rtx-4090"), CATALOGUE).workers
    assert small.speeds[0].t_gen_p90_s < whole.speeds[0].t_gen_p90_s
    assert (whole.speed_interval, small.speed_interval, shared.speed_interval) == (0.15, 1.0, 0.25)
    (refused,) = workers_of(rows(hardware="rtx-4090", gpus=2, tensor_parallel=4), CATALOGUE).skipped
    assert (refused.reason, refused.column) == ("does_not_fit", "tensor_parallel")


def test_workers_that_are_alike_share_their_speeds() -> None:
    first, second = workers_of(rows(hardware="l4", count=2), ROLLOUTS).workers
    assert first.speeds is second.speeds
    assert (first.worker_id, second.worker_id) == ("a-1", "a-2")


@pytest.mark.parametrize(
    ("hardware", "model", "reason"),
    [("abacus", "qwen3-4b", "unknown_hardware"), ("l4", "llama-3.3-70b", "does_not_fit"), ("l4", "", "missing")],
)
def test_hardware_that_cannot_make_rollouts_is_skipped(hardware: str, model: str, reason: str) -> None:
    rollouts = Rollouts(
        model=model_named(model), lengths=LENGTHS, prompt_tokens=100, efficiency=0.7, concurrencies=(1,)
    )
    pool = workers_of(rows(hardware=hardware), rollouts)
    assert pool.workers == ()
    assert [one.reason for one in pool.skipped] == [reason]


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"start": "ssh", "count": 2}, "count does not allow a start"),
        ({"start": "ssh", "address": "-oProxyCommand=x"}, "address does not allow"),
        ({"start": "ssh", "python": "p; rm"}, "python does not allow"),
        ({"start": "local", "worker_id": "Big.Box"}, "worker_id does not allow"),
        ({"start": "local", "advertise": "host"}, "advertise does not allow"),
        ({"start": "sky", "hardware": "rtx-a6000"}, "instance_type does not allow"),
        ({"start": "sky", "instance_type": "1x-L4"}, "infra does not allow"),
        ({"start": "sky", "infra": "a b"}, "infra does not allow"),
        ({"start": "sky", "infra": "slurm/hpc/gpu", "spot": True, "preemptions_per_hour": 0}, "spot does not allow"),
        ({"start": "sky", "infra": "vast/US/1"}, "infra does not allow"),
        ({"start": "cloud"}, "start is not a choice"),
    ],
)
def test_a_row_that_could_not_be_started_is_skipped(values: dict[str, Value], what: str) -> None:
    assert what in skipped_lines(check_pool([row(**values)]).skipped)[0]


def test_a_row_that_its_owner_starts_may_have_any_name() -> None:
    assert rows(worker_id="Big.Box/7", hardware="l4")
    assert sky_accelerators(rows(hardware="A100-SXM4-80GB", gpus=8, start="sky")[0]) == "A100-80GB:8"
