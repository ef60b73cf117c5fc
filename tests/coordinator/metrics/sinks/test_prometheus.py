"""The newest step on /metrics."""

from __future__ import annotations

from coordinator.metrics.sinks.prometheus import FIGURES_MAX, PrometheusSink
from rollcast.runtime import metrics


def _series(sink_values: list[dict[str, object]]) -> list[str]:
    registry = metrics.new_registry()
    sink = PrometheusSink(registry)
    for step, values in enumerate(sink_values, start=1):
        sink.write(step, values)
    return [line for line in metrics.render(registry).decode().splitlines() if not line.startswith("#")]


def test_the_newest_step_replaces_the_one_before() -> None:
    assert _series([{"loss": 1.0, "eval_held_out_pass_at_1": 0.5}, {"loss": 0.25}]) == [
        'rollcast_step_figure{figure="step"} 2.0',
        'rollcast_step_figure{figure="loss"} 0.25',
    ]


def test_figures_of_peers_are_left_out_and_the_number_of_series_is_bounded() -> None:
    many = {f"figure_{index}": 1.0 for index in range(1000)}
    lines = _series([{"kl_k3:12D3KooW": 1.0, **many}])
    assert len(lines) == FIGURES_MAX
    assert not any("12D3KooW" in line for line in lines)
