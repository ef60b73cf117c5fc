"""Test views of a run's steps and of samples of its rollouts."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.events.prices import Price
from coordinator.core.members.mismatch import mismatch_status
from coordinator.core.status.turns import at_once
from coordinator.views.runs import Runs, steps_view, with_names
from coordinator.views.samples import SERIES, Point, take_sample
from rollcast.runtime.errors import MalformedMessage
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import PeerId
from tests.coordinator.core_world import announced, held
from tests.coordinator.views.viewed import NOW, core, facts, status, world


def write(folder: Path, *steps: dict[str, object]) -> RunFolder:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in steps)
    return RunFolder(folder)


def test_steps_are_rows_of_the_columns_that_any_of_them_has(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", {"step": 1, "loss": 0.5, "kl_k3:peer": 1.0}, {"step": 2, "eval": {"a": 1}})
    view = Runs(folder).steps("", from_step=0, points=100)
    assert (view.run, view.columns, view.every) == (
        "one",
        ("step", "loss", "kl_k3_worst", "kl_k3_worst_peer", "eval"),
        1,
    )
    assert view.rows == ((1, 0.5, 1.0, "peer", None), (2, None, None, None, {"a": 1}))
    assert Runs(folder).steps("one", from_step=2, points=100).rows == ((2, {"a": 1}),)


def test_the_worst_peer_of_a_step_has_its_name() -> None:
    steps = [{"step": 1, "kl_k3:a": 1.0, "kl_k3:b": 2.0}, {"step": 2, "kl_k3:a": 1.0}, {"step": 3}]
    asked: list[object] = []

    def names_of(peer_ids: Collection[str]) -> dict[str, str]:
        asked.append(peer_ids)
        return {"b": "garage"}

    view = with_names(steps_view("r", steps), names_of)
    place = view.columns.index("kl_k3_worst_name")
    assert [row[place] for row in view.rows] == ["garage", None, None]
    assert asked == [{"a", "b"}]
    assert with_names(bare := steps_view("r", [{"step": 1}]), names_of) == bare
    assert len(asked) == 1, "no step names a peer"


@given(count=st.integers(0, 300), points=st.integers(1, 50), from_step=st.integers(0, 320))
def test_many_steps_are_thinned_and_the_newest_stays(count: int, points: int, from_step: int) -> None:
    view = steps_view("r", [{"step": step} for step in range(count)], from_step=from_step, points=points)
    steps = [row[0] for row in view.rows]
    assert len(steps) <= points + 1
    assert steps == sorted(set(steps))
    assert (steps[-1] if steps else None) == (count - 1 if count > from_step else None)


def test_new_steps_are_read_once_and_an_incomplete_line_waits(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", {"step": 1})
    runs = Runs(folder)
    assert runs.new_steps() == [{"step": 1}]
    with folder.metrics.open("a") as file:
        file.write('{"step": 2}\n{"ste')
    assert runs.new_steps() == [{"step": 2}]
    with folder.metrics.open("a") as file:
        file.write('p": 3}\n')
    assert runs.steps("", from_step=0, points=10).rows == ((1,), (2,), (3,))
    assert runs.new_steps() == [{"step": 3}]
    assert runs.new_steps() == []


def test_runs_side_by_side_are_listed_and_read(tmp_path: Path) -> None:
    write(tmp_path / "old", {"step": 4})
    os.utime(tmp_path / "old" / "metrics.jsonl", (1000, 1000))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "old")
    runs = Runs(write(tmp_path / "now", {"step": 9}))
    found = runs.runs().runs
    assert [(one.name, one.current, one.steps) for one in found] == [("now", True, 9), ("old", False, 4)]
    assert found[1].began_unix_s == 1000
    assert runs.steps("old", from_step=0, points=9).rows == ((4,),)


@pytest.mark.parametrize(
    "name",
    ["..", ".", "../one", "a/b", "/etc", "\x00", "absent", "link", ".hidden", "x" * 200, "one\n", "%2e%2e", "c:\\"],
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    outside = write(tmp_path / "outside" / "secret", {"step": 1})
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(outside.root)
    runs = Runs(write(tmp_path / "runs" / "one", {"step": 1}))
    with pytest.raises(MalformedMessage, match="no run with this name"):
        runs.steps(name, from_step=0, points=10)


def test_a_linked_file_is_refused_too(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"step": 1})
    other = tmp_path / "runs" / "other"
    other.mkdir(parents=True)
    (other / "metrics.jsonl").symlink_to(outside.metrics)
    runs = Runs(write(tmp_path / "runs" / "one"))
    with pytest.raises(MalformedMessage):
        runs.steps("other", from_step=0, points=10)
    assert [one.name for one in runs.runs().runs] == ["one"]


def test_each_series_has_its_mean_and_its_worst_member() -> None:
    run = world("a", "b", "c")
    state = run.core.state
    for name, tokens in {"a": 10.0, "b": 20.0, "c": 99.0}.items():
        member = state.members.get(PeerId(name))
        assert member is not None
        member.facts = facts(name, tokens_per_second=tokens, uplink_bytes_per_second=tokens * 1e6)
        member.reputation.accepted, member.reputation.dropped = 8, {"a": 0, "b": 8, "c": 0}[name]
    state.members.reputation(PeerId("c")).standby = "off"
    run.now += 4.0
    run.handle(announced(2))
    run.handle(held("a", 2))
    sample = at_once(take_sample(state, status(run.core, run.now), None, now=run.now))
    assert set(sample) == set(SERIES)
    assert sample["tokens_per_s"] == Point(15.0, 10.0, "a")
    assert sample["upload_bytes_per_s"] == Point(15e6, 10e6, "a")
    assert sample["accept_share"] == Point(0.75, 0.5, "b")
    assert sample["version_lag"] == Point(1.0, 2.0, "b")
    assert sample["last_seen_s"] == Point(2.0, 4.0, "b")
    assert sample["t_bcast_s"] == Point(0.0, 0.0, "a")


def test_unmeasured_values_are_none() -> None:
    found = core()
    assert set(at_once(take_sample(found.state, status(found), None, now=NOW)).values()) == {Point()}


def test_money_and_mismatch() -> None:
    found = core("a")
    found.state.prices = (Price(name="a", usd_per_hour=2.5),)
    values = {"mismatch_kl_k3": 0.01, "kl_k3:a": 0.03, "kl_k3:z": 0.02}
    said = replace(status(found), mismatch=mismatch_status(values, [("a", "a", "cpu")]))
    sample = at_once(take_sample(found.state, said, None, now=NOW))
    assert sample["usd_per_hour"] == Point(2.5)
    assert sample["mismatch_kl"] == Point(0.01, 0.03, "a")
    spent = at_once(take_sample(found.state, said, {"usd_per_hour": 7.0}, now=NOW))
    assert spent["usd_per_hour"].mean == pytest.approx(7.0)
