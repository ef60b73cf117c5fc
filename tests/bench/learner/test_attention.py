from __future__ import annotations

import argparse
from typing import Any

import jax
import pytest

from bench.ahead.accelerators import Accelerators
from bench.ahead.compile_attention import compiled
from bench.learner import attention


def test_growth_is_the_worst_of_long_rows() -> None:
    found = [
        {"row_tokens": tokens, "temporary_bytes": bytes_}
        for tokens, bytes_ in ((512, 1 << 22), (2048, 1 << 21), (4096, 1 << 23))
    ]
    figures = attention.growth("x", found)
    assert figures == {
        "x.512.kib_per_token": 8.0,
        "x.2048.kib_per_token": 1.0,
        "x.4096.kib_per_token": 2.0,
        "x.growth": 2.0,
    }


def test_devices_without_a_compiler_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "why_not", lambda _accelerators: "none")
    outcome = attention.run(argparse.Namespace(devices=["h100x8"]))
    assert outcome.missing == ("h100x8.growth",)


def test_a_length_is_compiled_for_the_devices_that_there_are() -> None:
    here: Any = Accelerators("cpu", 0.0, "TPU v5p", "", data=1, fsdp=1)
    found = compiled(here, jax.devices()[:1], 256)
    assert (found["row_tokens"], found["kernel"]) == (256, "dense")
    assert found["temporary_bytes"] > 32 * 256 * 256 * 4  # scores of whole rows
