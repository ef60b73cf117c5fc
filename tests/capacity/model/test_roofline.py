from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.catalogue.gpus import gpus
from capacity.catalogue.models import models
from capacity.model.lengths import LengthDistribution
from capacity.model.roofline import (
    WEIGHT_BYTES,
    Engine,
    Gpu,
    ModelShape,
    TimedDecode,
    concurrency_max,
    decode_ms_per_token,
    fit_efficiency,
    predicted_ms,
    speeds_of,
)

GPU = Gpu("a gpu", memory_bytes=1e9, bandwidth_bytes_per_second=1e9, flops_per_second=1e12)
MODEL = ModelShape("a model", parameters=1e8, layers=10, kv_heads=2, head_dim=25)  # 0.2 GB; 2 kB a token

concurrencies = st.integers(1, 512)


#: An engine that reaches everything and loses nothing, so that the terms can be read off.
IDEAL = Engine(1.0, 1.0, 1.0, 0.0, 0.0, {"pcie": 0.001, "nvlink": 0.0}, {"pcie": 1e9, "nvlink": 1e12})


def ideal_ms(concurrency: float, context: float, model: ModelShape = MODEL, **others: float) -> float:
    return decode_ms_per_token(GPU, model, concurrency, context, engine=IDEAL, **others)  # type: ignore[arg-type]


def test_few_rollouts_cost_the_reading_of_weights_and_cache() -> None:
    assert MODEL.kv_bytes_per_token == 2000
    assert ideal_ms(1, 0) == pytest.approx(200.0)
    assert ideal_ms(10, 1000) == pytest.approx(220.0)
    assert ideal_ms(10, 1000, efficiency=0.5) == pytest.approx(440.0)


def test_many_rollouts_cost_arithmetic() -> None:
    assert ideal_ms(5000, 0) == pytest.approx(1000.0)
    assert ideal_ms(5000, 100) == pytest.approx(1000.0 + 1000.0)  # their caches are read besides


def test_prompts_cost_arithmetic_besides_decoding() -> None:
    assert ideal_ms(100, 0, prompt_per_token=2.0) == pytest.approx(200.0 + 40.0)


def test_each_layer_and_each_rollout_costs_time() -> None:
    engine = replace(IDEAL, layer_s=1e-3, rollout_s=1e-4)
    assert decode_ms_per_token(GPU, MODEL, 20, 0, engine=engine) == pytest.approx(200.0 + 10 * 1.0 + 20 * 0.1)


def test_gpus_that_share_a_model_are_faster_less_what_they_exchange() -> None:
    width = (1e8 / 120) ** 0.5
    exchange_ms = 10 * (1.0 + 8 * width * 2 / 1e9 * 1000)
    assert ideal_ms(8, 0, gpus=2) == pytest.approx(100.0 + exchange_ms)
    linked = replace(GPU, links="nvlink")
    assert decode_ms_per_token(linked, MODEL, 8, 0, gpus=2, engine=IDEAL) == pytest.approx(100.0, rel=1e-3)


def test_weights_of_fewer_bits_are_read_faster() -> None:
    assert ideal_ms(1, 0, replace(MODEL, bytes_per_parameter=WEIGHT_BYTES["fp8"])) == pytest.approx(100.0)
    assert ideal_ms(1, 0, replace(MODEL, bytes_per_parameter=WEIGHT_BYTES["int4"])) == pytest.approx(53.0)


def test_of_a_mixture_of_experts_few_rollouts_read_a_part() -> None:
    mixture = replace(MODEL, active_parameters=2.5e7)
    assert ideal_ms(1, 0, mixture) == pytest.approx(50.0)
    assert ideal_ms(2, 0, mixture) == pytest.approx(87.5)
    assert ideal_ms(100, 0, mixture) == pytest.approx(200.0)


@given(concurrencies, st.floats(0, 32_000), st.floats(0.1, 1000))
def test_a_timed_decode_is_given_back(concurrency: int, context: float, ms: float) -> None:
    timed = TimedDecode(GPU, MODEL, concurrency, context, ms, prompt_per_token=0.5)
    assert predicted_ms(timed, fit_efficiency(timed)) == pytest.approx(ms)


@given(concurrencies, concurrencies, st.floats(0, 32_000))
def test_more_at_once_is_slower_each_and_faster_together(one: int, other: int, context: float) -> None:
    few, many = sorted((one, other))
    few_ms, many_ms = (decode_ms_per_token(GPU, MODEL, count, context) for count in (few, many))
    assert few_ms <= many_ms * (1 + 1e-12)
    assert few / few_ms <= many / many_ms * (1 + 1e-12)


def test_speeds_hold_as_many_rollouts_as_fit_into_memory() -> None:
    lengths = LengthDistribution.from_lengths([1000])
    fitting = concurrency_max(GPU, MODEL, 100 + 500)
    assert fitting == int(0.7e9 / (600 * 2000))
    speeds = speeds_of(GPU, MODEL, lengths, [4096, 8, 1, 8], 0.8, prompt_tokens=100)
    assert [speed.concurrency for speed in speeds] == [1, 8]
    pace_ms = decode_ms_per_token(GPU, MODEL, 8, 600, 0.8, prompt_per_token=0.1)
    assert speeds[1].t_gen_p90_s == pytest.approx(pace_ms)  # 1,000 tokens
    assert speeds[1].t_gen_mean_s == pytest.approx(pace_ms)
    assert speeds[1].rollouts_per_second == pytest.approx(8 / pace_ms)


def test_a_model_that_does_not_fit_has_no_speed() -> None:
    assert concurrency_max(gpus()["rtx-4090"], models()["qwen3-32b"], 1000) == 0
    assert speeds_of(gpus()["rtx-4090"], models()["qwen3-32b"], LengthDistribution.from_lengths([9]), [1]) == ()
    assert concurrency_max(gpus()["rtx-4090"], models()["qwen3-32b"], 1000, gpus=4) > 0


@pytest.mark.parametrize(("gpu", "model"), [("rtx-4090", "qwen3-8b"), ("h100-sxm", "qwen3-32b")])
def test_one_copy_of_the_weights_leaves_room_for_rollouts(gpu: str, model: str) -> None:
    shape = models()[model]
    assert concurrency_max(gpus()[gpu], shape, 2048) >= 16
    assert concurrency_max(gpus()[gpu], replace(shape, parameters=2 * shape.parameters), 2048) == 0


@pytest.mark.parametrize(
    "wrong", [{"concurrency": 0}, {"context": -1.0}, {"efficiency": 0.0}, {"prompt_per_token": -1.0}]
)
def test_arguments_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        decode_ms_per_token(GPU, MODEL, **({"concurrency": 1, "context": 1.0} | wrong))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ms_per_token"):
        fit_efficiency(TimedDecode(GPU, MODEL, 1, 1, 0.0))
