from __future__ import annotations

import argparse
import os

import pytest

from bench.engines import engines, finish
from bench.engines.agreement import equal_prefix
from bench.engines.common import requests
from bench.learner.sampler import model


def parsed(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    engines.add_arguments(parser)
    small = "--layers 1 --width 128 --vocabulary 64 --prompt 20 --tokens 4 --rounds 1".split()  # noqa: SIM905
    return parser.parse_args([*small, *given])


@pytest.mark.parametrize(
    ("first", "second", "same"), [([], [], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 9, 3], 1), ([1], [1, 2], 1)]
)
def test_tokens_count_up_to_the_first_difference(first: list[int], second: list[int], same: int) -> None:
    assert equal_prefix(first, second) == same


def test_groups_share_a_prompt_and_every_request_has_its_own_seed() -> None:
    config = model(parsed())
    asked = requests(config, 16, 20, 4, group=8, seed=3)
    assert len({one.prompt_token_ids for one in asked}) == 2
    assert len({one.seed for one in asked}) == 16
    assert asked == requests(config, 16, 20, 4, group=8, seed=3)


def test_a_version_of_adapters_is_a_small_share_of_a_keyframe() -> None:
    share = engines.adapter_share("qwen3-8b", rank=16)
    assert share == pytest.approx(2 * engines.adapter_share("qwen3-8b", rank=8))
    assert 0.001 < share < 0.006


def test_what_is_left_out_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = engines.run(parsed("--only", "adapters"))
    assert set(outcome.missing) == {f"reward_{form}" for form in ("vllm", "mixed", "lora", "nvfp4", "noise")}
    assert "left out: speed, agreement, finish, vllm" in capsys.readouterr().err


@pytest.mark.slow
def test_rollouts_that_finish_beside_newer_ones_are_compared_with_drained_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TOKENS_MAX": 12, "MEDIAN_TOKENS": 4, "ROWS": 4, "BATCHES_PER_VERSION": 1}.items():
        monkeypatch.setattr(finish, name, value)
    assert engines.run(parsed("--only", "finish")).figures["finish_beside_per_drained"] > 0.0


@pytest.mark.vllm
@pytest.mark.timeout(600)  # it starts vLLM three times
def test_every_figure_of_speed_and_agreement_is_reported() -> None:
    given = parsed("--python", os.environ["ROLLCAST_VLLM_PYTHON"], "--only", "speed", "--only", "agreement")
    figures = engines.run(given).figures
    assert {"jax_per_vllm_b8", "jax_per_vllm_b64_no_prefix", "vllm_tokens_equal_bf16"} <= figures.keys()
    assert figures["vllm_tokens_equal_f32"] > 0.5
