from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.config.tasks import JsonlTask, ReasoningGymTask, TaskConfig
from coordinator.tasks.build import build_task, task_config_from_json, task_config_to_json
from coordinator.tasks.reasoning_gym import ReasoningGym
from coordinator.tasks.rows import Rows
from rollcast.runtime.errors import TaskError


def test_each_kind_has_its_adapter(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n')
    assert isinstance(build_task(JsonlTask(kind="jsonl", path=path), 0), Rows)
    assert isinstance(build_task(ReasoningGymTask(), 0), ReasoningGym)


@pytest.mark.parametrize(
    "config", [ReasoningGymTask(parameters={"max_terms": 3}), JsonlTask(kind="jsonl", path=Path("a/b.jsonl"))]
)
def test_the_configuration_survives_json(config: TaskConfig) -> None:
    assert task_config_from_json(task_config_to_json(config)) == config


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(TaskError):
        task_config_from_json('{"kind": "hostile"}')
