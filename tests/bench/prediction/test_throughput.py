"""Test that the estimates of the roofline model fit the shipped measurements."""

from __future__ import annotations

import json

import pytest

from bench.__main__ import main
from bench.prediction import throughput
from capacity.model.roofline import VLLM


@pytest.mark.slow
def test_measurements_held_out_of_the_fit_are_within_the_printed_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["throughput", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["within_share"] >= 0.9
    assert figures["interval_max"] <= 0.25
    assert all(figures[f"{kind}_within_share"] >= 0.9 for kind in ("timed", "untimed", "shared"))


def test_the_engine_that_plans_use_is_the_one_fitted_to_the_shipped_rows() -> None:
    rows = throughput.rows_with_interval()
    fitted = throughput.fit(rows)
    used, found = VLLM, fitted.engine
    for one, other in ((used.weights_share, found.weights_share), (used.cache_share, found.cache_share)):
        assert one == pytest.approx(other, rel=0.02)
    assert used.layer_s == pytest.approx(found.layer_s, rel=0.05)
    errors = [abs(one.ms_per_token / fitted.ms_per_token(one) - 1.0) for one in rows]
    assert sum(error <= 0.15 for error in errors) >= 0.9 * len(rows)
