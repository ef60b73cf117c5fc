from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.config.config import TokenizerConfig
from coordinator.prompts.tokenizers import check_stop_strings, kept_tokenizer, run_tokenizer
from rollcast.runtime.errors import ConfigError, TaskError
from rollcast.wire.text.hub_tokenizer import HubTokenizer
from rollcast.wire.text.tokenizer import Tokenizer
from tests.wire.text.hub_tokenizer_files import tokenizer_folder

SMALL = Tokenizer(("+",), "12")


def test_without_a_folder_it_is_made_of_the_tasks_wording() -> None:
    assert run_tokenizer(TokenizerConfig(), lambda: SMALL) is SMALL
    assert kept_tokenizer(TokenizerConfig(), SMALL.to_json()) == SMALL


def test_a_run_goes_on_with_the_tokenizer_that_it_began_with(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    config = TokenizerConfig(folder=tokenizer_folder(tmp_path / "model"), arguments={"enable_thinking": False})
    kept = run_tokenizer(config, lambda: SMALL).to_json()
    assert kept_tokenizer(config, kept).to_json() == kept
    for changed in (config.model_copy(update={"system_prompt": "Be brief."}), TokenizerConfig(folder=config.folder)):
        with pytest.raises(TaskError, match="differs from the one at the run's start"):
            kept_tokenizer(changed, kept)


def test_a_stop_string_that_no_completion_can_hold_is_refused(tmp_path: Path) -> None:
    check_stop_strings(SMALL, ("1+", "22"))
    with pytest.raises(ConfigError, match="no completion can hold the stop string '3'"):
        check_stop_strings(SMALL, ("1", "3"))
    check_stop_strings(HubTokenizer(tokenizer_folder(tmp_path / "model")), ("</answer>", "é"))
