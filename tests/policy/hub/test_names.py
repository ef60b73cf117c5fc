from __future__ import annotations

import pytest

from rollcast.policy.hub.names import hf_name, is_transposed, may_be_ignored
from rollcast.policy.shapes import parameter_shapes
from tests.policy.tiny import TINY


def test_every_parameter_has_its_own_name() -> None:
    config = TINY.model_copy(update={"attention_bias": True, "tied_embeddings": False})
    names = [hf_name(name) for name in parameter_shapes(config)]
    assert len(set(names)) == len(names)
    assert {"lm_head.weight", "model.layers.1.self_attn.k_norm.weight", "model.layers.0.self_attn.v_proj.bias"} <= set(
        names
    )


@pytest.mark.parametrize(
    "name", ["head", "layers.0.attention.query", "layers.x.attention.query.kernel", "layers.0.mlp.kernel"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(KeyError):
        hf_name(name)


def test_kernels_lie_the_other_way_round() -> None:
    assert is_transposed("head.kernel")
    assert not is_transposed("embedding")


def test_what_follows_from_other_tensors_may_be_ignored() -> None:
    assert may_be_ignored("lm_head.weight", tied=True)
    assert not may_be_ignored("lm_head.weight", tied=False)
    assert may_be_ignored("model.layers.11.self_attn.rotary_emb.inv_freq", tied=False)
