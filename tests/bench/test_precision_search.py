from __future__ import annotations

import pytest

from bench.demonstration import Course
from bench.precision_search import FLOWS, figures


def courses(name: str, after: dict[str, list[float]]) -> dict[tuple[str, str], list[Course]]:
    return {(name, flow): [Course(0.25, one, {}) for one in after[flow]] for flow in FLOWS}


def test_harm_is_what_naive_loses_against_bf16_with_every_seed() -> None:
    found = figures(
        courses("harmed", {"bf16": [0.9, 0.8], "unified": [0.89, 0.8], "naive": [0.6, 0.7]})
        | courses("mixed", {"bf16": [0.9, 0.8], "unified": [0.9, 0.8], "naive": [0.6, 0.8]})
    )
    assert found["harmed"] == 1.0
    assert found["harm_most"] == pytest.approx(0.2)
    assert found["unified_behind_most"] == pytest.approx(0.005)
    assert found["harmed_naive"] == pytest.approx(0.65)
    assert found["mixed_before"] == 0.25
