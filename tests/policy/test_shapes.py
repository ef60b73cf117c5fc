from __future__ import annotations

import pytest

from rollcast.policy.params import abstract_params
from rollcast.policy.shapes import parameter_count, parameter_shapes
from tests.policy.tiny import TINY


@pytest.mark.parametrize(
    ("tied", "qk_norm", "bias"), [(True, True, False), (False, False, True), (False, False, False)]
)
def test_shapes_are_those_of_the_model(tied: bool, qk_norm: bool, bias: bool) -> None:
    config = TINY.model_copy(update={"tied_embeddings": tied, "qk_norm": qk_norm, "attention_bias": bias})
    expected = {name: leaf.shape for name, leaf in sorted(abstract_params(config).items())}
    assert list(parameter_shapes(config).items()) == list(expected.items())
    assert parameter_count(config) == sum(leaf.size for leaf in abstract_params(config).values())
