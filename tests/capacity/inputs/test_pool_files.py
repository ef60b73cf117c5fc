from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from capacity.inputs.pool_columns import RULES
from capacity.inputs.pool_files import assumed_values, read_pool, rows_of_csv, rows_of_toml
from rollcast.runtime.errors import PoolError

CSV = """# prices of 1 November
worker_id,usd_per_hour,upload_mbit_per_second

a,0.4,500
"b, the second",,40
"""


def test_csv_says_where_each_row_is_and_leaves_empty_cells_out() -> None:
    first, second = rows_of_csv(CSV, "pool.csv")
    assert (first.where, first.values) == (
        "line 4",
        {"worker_id": "a", "usd_per_hour": "0.4", "upload_mbit_per_second": "500"},
    )
    assert second.values == {"worker_id": "b, the second", "upload_mbit_per_second": "40"}


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
        ("worker_id,upload_mbps\na,3\n", "did you mean 'upload_mbit_per_second'"),
        ("worker_id,worker_id\na,b\n", "twice"),
        ("worker_id,region\na\n", "line 2 has 1 cells, the header 2"),
        ('worker_id\n"a\n', "not CSV"),
        ('worker_id,region\n"a\nb",c\n', "line break"),
    ],
)
def test_csv_that_cannot_be_read_is_told(text: str, message: str) -> None:
    with pytest.raises(PoolError, match=message):
        rows_of_csv(text, "pool.csv")


@pytest.mark.parametrize(
    "text", ["worker = 3", "[workers]\n", "[[worker]]\nspeed = 3\n", "[[worker]]\nname = []\n", "a"]
)
def test_toml_that_is_no_pool_is_told(text: str) -> None:
    with pytest.raises(PoolError):
        rows_of_toml(text, "pool.toml")


def test_files_that_are_no_pool_are_told(tmp_path: Path) -> None:
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
