"""Test what Weights & Biases and MLflow are sent; both packages are replaced."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.config.sinks import WandbConfig
from coordinator.prompts.samples import Sample
from coordinator.prompts.stored_rollouts import StoredRollout, Turn
from coordinator.prompts.trace_export import export_to_mlflow, export_to_wandb, messages_of
from rollcast.runtime.errors import MissingExtra, Unreachable

EVALUATED = Sample("held_out", 4, "sums:1", 0, "1+1=", "2", "2", 1.0, True)
PLAYED = StoredRollout(
    *("training", 3, "game:7", 1, "guess:", "", "4", 0.5, False),
    parts={"format": 1.0},
    rollout_id=9,
    peer="lab",
    turns=(
        Turn("assistant", 3, "lab", "4", (4, 1), ()),
        Turn("user", 0, "environment", ">", (5,), ()),
        Turn("assistant", 4, "attic", "5", (6, 1), ()),
    ),
)


class Refused(Exception):
    pass


def test_a_sample_is_a_conversation() -> None:
    assert messages_of(EVALUATED) == [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    assert [one["role"] for one in messages_of(PLAYED)] == ["user", "assistant", "user", "assistant"]


def fake_wandb(**changes: Any) -> SimpleNamespace:
    """Return a package whose tables are dicts, with what it was asked for and what it logged."""
    seen: dict[str, Any] = {}
    run = SimpleNamespace(log=seen.update, finish=lambda: seen.update(finished=True))

    def init(**values: Any) -> Any:
        seen.update(values)
        return run

    errors = SimpleNamespace(Error=Refused)
    return SimpleNamespace(**{"seen": seen, "init": init, "Settings": dict, "Table": dict, "errors": errors} | changes)


def test_weights_and_biases_gets_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = fake_wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    export_to_wandb([EVALUATED, PLAYED], tmp_path / "w", "run-1", "sums", WandbConfig(mode="offline"))
    assert (wandb.seen["id"], wandb.seen["mode"], wandb.seen["finished"]) == ("run-1-rollouts", "offline", True)
    table = wandb.seen["rollouts"]
    first, second = (dict(zip(table["columns"], row, strict=True)) for row in table["data"])
    assert (first["reward"], first["exact"], first["part_format"], first["peer"]) == (1.0, True, None, None)
    assert (second["part_format"], second["peer"], second["prompt"]) == (1.0, "lab", "guess:")
    assert [one["content"] for one in json.loads(second["messages"])] == ["4", ">", "5"]


def test_what_is_not_taken_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**values: Any) -> Any:
        raise Refused("no API key")

    monkeypatch.setitem(sys.modules, "wandb", fake_wandb(init=refuse))
    with pytest.raises(Unreachable, match="no API key"):
        export_to_wandb([EVALUATED], tmp_path, "run-1", "sums", WandbConfig())


class FakeMlflow:
    """Keeps spans and feedback."""

    exceptions = SimpleNamespace(MlflowException=Refused)

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.feedback: list[tuple[str, str, float]] = []
        self.experiment = ""

    def set_experiment(self, name: str) -> None:
        self.experiment = name

    def start_span_no_context(self, name: str, **values: Any) -> Any:
        span = {"name": name, "open": True, **values}
        self.spans.append(span)
        return SimpleNamespace(
            trace_id=f"tr-{len(self.spans)}",
            set_outputs=lambda outputs: span.update(outputs=outputs),
            end=lambda: span.update(open=False),
        )

    def flush_trace_async_logging(self) -> None:
        assert not any(span["open"] for span in self.spans)

    def log_feedback(self, *, trace_id: str, name: str, value: float) -> None:
        self.feedback.append((trace_id, name, value))


def test_mlflow_gets_a_trace_with_a_span_for_each_turn_and_the_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)  # type: ignore[arg-type]
    export_to_mlflow([PLAYED], "run-1")
    root, first, second = mlflow.spans
    assert mlflow.experiment == "rollcast"
    assert root["tags"]["rollcast.run_id"] == "run-1"
    assert [one["content"] for one in root["outputs"]["messages"]] == ["4", ">", "5"]
    assert (first["attributes"], second["attributes"]) == (
        {"version": 3, "peer": "lab", "tokens": 2},
        {"version": 4, "peer": "attic", "tokens": 2},
    )
    assert [one["content"] for one in second["inputs"]["messages"]] == ["guess:", "4", ">"]
    assert second["outputs"]["content"] == "5"
    assert mlflow.feedback == [("tr-1", "reward", 0.5), ("tr-1", "format", 1.0)]


def test_a_missing_package_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingExtra, match=r"\[wandb\]"):
        export_to_wandb([], tmp_path, "run-1", "sums", WandbConfig())
    with pytest.raises(MissingExtra, match=r"\[mlflow\]"):
        export_to_mlflow([], "run-1")
