from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from capacity.questions.plan_json import decode, encode, json_schema, read_plan, totals_of
from rollcast.runtime.errors import PlanFileError
from tests.capacity.sample_plan import infeasible_sample, sample_document, sample_plan

SCHEMA_FILE = Path(__file__).parents[3] / "docs" / "capacity-plan.schema.json"


def test_a_document_survives_a_round_trip() -> None:
    for made in (sample_plan(), infeasible_sample()):
        document = sample_document(made)
        assert decode(encode(document), "plan.json") == document


def test_units_are_in_the_keys_and_totals_are_derived() -> None:
    document = json.loads(encode(sample_document()))
    assert document["schema"] == "rollcast.capacity.plan/2"
    assert document["plan"]["demand"]["learner_upload_bytes_per_second"] == 125e6
    totals = document["totals"]
    steps_per_hour = 3600 / document["plan"]["demand"]["t_train_s"]
    assert totals["usd_per_step"] * steps_per_hour == pytest.approx(totals["usd_per_hour"])
    assert totals["chosen"] == sum(one["chosen"] for one in document["plan"]["candidates"])


def test_no_workers_cost_nothing() -> None:
    totals = totals_of(infeasible_sample())
    assert (totals.chosen, totals.usd_per_hour, totals.usd_per_step) == (0, 0.0, 0.0)


def test_the_shipped_schema_is_this_one() -> None:
    assert SCHEMA_FILE.read_text() == json_schema(), "run: rollcast capacity schema > docs/capacity-plan.schema.json"


def test_the_schema_names_what_a_document_has() -> None:
    schema = json.loads(json_schema())
    whole = schema["$defs"]["PlanDocument"]
    assert set(json.loads(encode(sample_document()))) == set(whole["properties"])
    assert schema["$defs"]["Totals"]["required"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no json", "not JSON"),
        (b"[]", "no plan"),
        (b'{"a": 1}', "no plan"),
        (b'{"schema": "rollcast.capacity.plan/9"}', "plan/9"),
        (b'{"schema": "rollcast.capacity.plan/2", "software": 3}', r"\$.software"),
    ],
)
def test_files_that_are_no_plan_are_errors(data: bytes, message: str) -> None:
    with pytest.raises(PlanFileError, match=message):
        decode(data, "plan.json")


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="cannot read"):
        read_plan(tmp_path / "missing.json")
    path = tmp_path / "plan.json"
    path.write_bytes(encode(sample_document()))
    assert read_plan(path).plan == sample_plan()


def test_what_json_cannot_hold_is_our_bug() -> None:
    document = sample_document()
    broken = replace(document, plan=replace(document.plan, t_bcast_s=float("inf")))
    with pytest.raises(ValueError, match=r"plan\.plan\.t_bcast_s is inf"):
        encode(broken)
