from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollcast.policy.config import LoraConfig, ModelConfig, adapted
from rollcast.policy.lora import adapter_shapes, adapter_specs, version_shapes
from rollcast.policy.norm_noise import noise_deviation, norm_noise
from rollcast.policy.shapes import parameter_shapes
from rollcast.policy.sizing.memory import version_bytes
from tests.policy.tiny import TINY

NOISE = {"noise_start": 0.05, "noise_end": 0.0005, "noise_stages": 5, "noise_steps": 100}
LORA = LoraConfig.model_validate({"rank": 2, **NOISE})
NOISY = adapted(TINY, LORA)


def test_the_deviation_falls_by_the_same_factor_from_stage_to_stage() -> None:
    found = [noise_deviation(LORA, version) for version in range(0, 100, 20)]
    assert found[0] == 0.0, "the first stage has none"
    np.testing.assert_allclose(found[1:], [0.05, 0.05 * 0.01 ** (1 / 3), 0.05 * 0.01 ** (2 / 3), 0.0005])
    assert [noise_deviation(LORA, version) for version in (19, 20, 39, 40)] == [0.0, found[1], found[1], found[2]]
    assert [noise_deviation(LORA, version) for version in (99, 100, 10_000)] == [found[4]] * 3, "the last one stays"


def test_noise_follows_from_seed_and_version() -> None:
    first, again = norm_noise(NOISY, 7, 20), norm_noise(NOISY, 7, 20)
    name = "layers.feed_forward_norm.scale"
    assert set(first) == {name, "layers.attention_norm.scale"}
    assert all(np.array_equal(first[one], again[one]) for one in first)
    others = [norm_noise(NOISY, *at)[name] for at in ((7, 21), (8, 20))] + [first["layers.attention_norm.scale"]]
    assert not any(np.any(first[name] == other) for other in others)
    wide = adapted(TINY.model_copy(update={"width": 4096}), LORA)
    drawn = norm_noise(wide, 7, 20)[name]
    assert (drawn.dtype, drawn.shape) == (np.float32, (TINY.layers, 4096))
    assert np.std(drawn) == pytest.approx(0.05, rel=0.03)
    assert not np.any(norm_noise(NOISY, 7, 19)[name])


def test_a_version_has_scales_only_with_noise() -> None:
    plain = adapted(TINY, LoraConfig(rank=2))
    assert version_shapes(plain) == adapter_shapes(plain)
    assert norm_noise(plain, 7, 20) == norm_noise(TINY, 7, 20) == {}
    more = version_shapes(NOISY).keys() - adapter_shapes(NOISY).keys()
    assert more == {f"layers.{layer}.{norm}_norm.scale" for layer in (0, 1) for norm in ("attention", "feed_forward")}
    assert all(version_shapes(NOISY)[name] == parameter_shapes(TINY)[name] for name in more)
    assert version_bytes(NOISY) == version_bytes(plain) + 2 * 2 * 16 * 4
    assert sum(spec.size_bytes for spec in adapter_specs(NOISY)) == version_bytes(NOISY)


def test_the_noise_of_8b_takes_less_than_a_hundredth_of_its_adapters() -> None:
    model = ModelConfig.model_validate({"preset": "qwen3-8b"})
    noisy, plain = (version_bytes(adapted(model, LoraConfig(**values))) for values in (NOISE, {}))  # type: ignore[arg-type]
    assert 0 < noisy - plain < plain / 100


@pytest.mark.parametrize("values", [{"noise_steps": 0}, {"noise_steps": 4}, {"noise_end": 0.06}, {"noise_stages": 2}])
def test_noise_that_cannot_fall_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="noise_"):
        LoraConfig.model_validate(NOISE | values)
