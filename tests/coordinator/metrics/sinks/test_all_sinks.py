"""Test that each step reaches all sinks once: numbers of curves, slow and failing sinks, the file and Prometheus."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator.config.sinks import MetricsConfig
from coordinator.metrics.sinks import background
from coordinator.metrics.sinks.all_sinks import AllSinks, open_sinks
from coordinator.metrics.sinks.background import FAILURES_MAX, STEPS_QUEUED_MAX, BackgroundSink
from coordinator.metrics.sinks.file import FileSink
from coordinator.metrics.sinks.prometheus import FIGURES_MAX, PrometheusSink
from coordinator.metrics.sinks.sink import Sink, numbers
from coordinator.metrics.sinks.tensorboard import FOLDER
from rollcast.runtime import metrics
from rollcast.runtime.errors import MissingExtra, RunFolderError
from rollcast.runtime.run_folder import RunFolder


class Kept:
    """Keeps steps; waits or fails at the steps that a test names."""

    name = "kept"

    def __init__(self, *, fails: bool = False) -> None:
        self.steps: list[int] = []
        self.tried = 0
        self.closed = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._fails = fails

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self.may_go_on.wait(30.0)
        self.tried += 1
        if self._fails:
            raise OSError("no room")
        self.steps.append(step)

    def close(self) -> None:
        self.closed = True


def test_all_steps_arrive_in_order_before_it_is_closed() -> None:
    kept = Kept()
    sink = BackgroundSink("kept", lambda: kept)
    for step in range(100):
        sink.write(step, {"loss": 1.0})
    sink.close()
    assert kept.steps == list(range(100))
    assert kept.closed


def test_slow_sink_does_not_block_and_logs_skipped_steps() -> None:
    kept = Kept()
    kept.may_go_on.clear()
    sink = BackgroundSink("kept", lambda: kept)
    with capture_logs() as logs:
        for step in range(STEPS_QUEUED_MAX + 10):
            sink.write(step, {})
    assert logs[0]["event"] == "a metrics sink is too slow: steps are left out"
    kept.may_go_on.set()
    sink.close()
    assert STEPS_QUEUED_MAX <= len(kept.steps) <= STEPS_QUEUED_MAX + 1  # one may have been taken out of the queue


def test_sink_that_always_fails_is_abandoned() -> None:
    kept = Kept(fails=True)
    with capture_logs() as logs:
        sink = BackgroundSink("kept", lambda: kept)
        for step in range(FAILURES_MAX + 50):
            sink.write(step, {})
        sink.close()
    assert kept.tried == FAILURES_MAX
    assert logs[-1]["event"] == "a metrics sink fails repeatedly: the run continues without it"


def test_sink_that_cannot_be_opened_is_logged() -> None:
    def make() -> Sink:
        raise OSError("no such account")

    with capture_logs() as logs:
        sink = BackgroundSink("kept", make)
        sink.write(1, {})
        sink.close()
    assert logs[0]["cause"] == "no such account"


def test_closing_has_a_deadline(monkeypatch: Any) -> None:
    monkeypatch.setattr(background, "CLOSE_DEADLINE_S", 0.05)
    kept = Kept()
    kept.may_go_on.clear()
    sink = BackgroundSink("kept", lambda: kept)
    sink.write(1, {})
    with capture_logs() as logs:
        sink.close()
    assert logs[0]["event"].startswith("a metrics sink did not end in time")
    kept.may_go_on.set()


class Seen:
    name = "seen"

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.closed = False

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self.steps.append(step)

    def close(self) -> None:
        self.closed = True


def test_repeated_step_reaches_no_sink(tmp_path: Path) -> None:
    seen = Seen()
    sinks = AllSinks(FileSink(tmp_path / "metrics.jsonl"), [seen])
    for step in (1, 2, 2, 1, 3):
        sinks.write(step, {"loss": 1.0})
    sinks.close()
    assert seen.steps == [1, 2, 3]
    assert seen.closed


def test_a_run_writes_its_file_shows_metrics_and_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    registry = metrics.new_registry()
    folder = RunFolder(tmp_path)
    sinks = open_sinks(MetricsConfig(sinks=("tensorboard",)), folder, registry, run_id="r", run_name="n")
    sinks.write(1, {"loss": 0.5})
    sinks.close()
    assert json.loads(folder.metrics.read_text()) == {"step": 1, "loss": 0.5}
    assert 'rollcast_step_figure{figure="loss"} 0.5' in metrics.render(registry).decode()
    assert list((tmp_path / FOLDER).glob("events.*"))


def test_missing_sink_package_is_an_error_at_startup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("tensorboard", "wandb"):
        with pytest.raises(MissingExtra, match=name):
            open_sinks(
                MetricsConfig(sinks=(name,)), RunFolder(tmp_path), metrics.new_registry(), run_id="r", run_name="n"
            )


def test_numbers_are_found_with_their_names_and_nothing_else_is() -> None:
    line = {
        "step": 3,
        "loss": 0.5,
        "age_split": {"queue_s": 1.5, "unknown": None},
        "name": "x",
        "list": [1],
        "no": None,
    }
    assert dict(numbers(line)) == {"step": 3.0, "loss": 0.5, "age_split/queue_s": 1.5}


def test_each_step_has_one_line_even_when_reported_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = FileSink(path)
    first.write(1, {"reward": 0.1})
    first.write(2, {"reward": float("nan")})
    first.write(2, {"reward": 0.9})
    with path.open("a") as file:
        file.write('{"step":3,"rew')  # a crash in the middle of a line
    again = FileSink(path)
    again.write(2, {"reward": 0.9})
    again.write(3, {"reward": 0.3})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"step": 1, "reward": 0.1}, {"step": 2, "reward": None}, {"step": 3, "reward": 0.3}]


def test_steps_that_cannot_be_written_are_written_later(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "metrics.jsonl"
    sink = FileSink(path)
    for step in (1, 2):
        sink.write(step, {})
    path.parent.mkdir()
    sink.write(3, {})
    path.rename(path.with_name("moved"))
    path.mkdir()
    sink.write(4, {})
    path.rmdir()
    sink.close()
    written = path.with_name("moved").read_text() + path.read_text()
    assert [json.loads(line)["step"] for line in written.splitlines()] == [1, 2, 3, 4]


def test_a_file_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError):
        FileSink(tmp_path)


def _series(sink_values: list[dict[str, object]]) -> list[str]:
    registry = metrics.new_registry()
    sink = PrometheusSink(registry)
    for step, values in enumerate(sink_values, start=1):
        sink.write(step, values)
    return [line for line in metrics.render(registry).decode().splitlines() if not line.startswith("#")]


def test_the_newest_step_replaces_the_one_before() -> None:
    assert _series([{"loss": 1.0, "eval_held_out_pass_at_1": 0.5}, {"loss": 0.25}]) == [
        'rollcast_step_figure{figure="step"} 2.0',
        'rollcast_step_figure{figure="loss"} 0.25',
    ]


def test_figures_of_peers_are_left_out_and_the_number_of_series_is_bounded() -> None:
    many = {f"figure_{index}": 1.0 for index in range(1000)}
    lines = _series([{"kl_k3:12D3KooW": 1.0, **many}])
    assert len(lines) == FIGURES_MAX
    assert not any("12D3KooW" in line for line in lines)
