"""Test that a sampler that spans several devices draws the tokens of one that has a single device."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compiling import printed_on_eight_devices

LAYOUTS = {
    "repeated heads": (1 / 4, 1),  # of 2 key heads, each is on 2 of the 4 devices
    "undivided heads": (1 / 3, 2),
    "experts": (1 / 2, 1),
}


@pytest.fixture(scope="module")
def found() -> Any:
    return printed_on_eight_devices("tests.policy.sampling.sampling_on_devices")


@pytest.mark.parametrize("case", LAYOUTS)
def test_several_devices_sample_the_tokens_of_one(found: Any, case: str) -> None:
    assert found[case]["same_tokens"]
    assert found[case]["same_routes"]
    assert found[case]["difference"] <= 5e-6
    assert found[case]["forms"] == [1, 1], "pages keep their place on the devices"
    assert (found[case]["kernel_share"], found[case]["page_heads"]) == pytest.approx(LAYOUTS[case])
