"""Run policy tests under strict dtype promotion: no value may change its dtype by accident."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def strict_promotion() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"):
        yield
