"""List every metric family that a coordinator can export, from a busy run with money spent."""

from __future__ import annotations

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from coordinator.metrics.fleet import build_spending
from coordinator.metrics.metrics import CoordinatorMetrics
from coordinator.metrics.sinks.prometheus import PrometheusSink
from tests.coordinator.metrics.test_families import PLAN, STATUS
from tests.coordinator.metrics.test_fleet import manager
from tests.coordinator.sample_status import sample_broadcast_turns, sample_status

STEP = {
    "loss": 0.1,
    "entropy": 0.5,
    "kl_k3": 0.01,
    "ratio_mean": 1.0,
    "grad_norm": 0.3,
    "clip_fraction": 0.02,
    "train_s": 1.0,
    "wait_s": 0.1,
    "publish_s": 0.1,
    "behaviour_s": 0.2,
    "checkpoint_s": 0.0,
    "eval_held_out_pass_at_1": 0.9,
}


def exported() -> dict[str, set[tuple[str, str]]]:
    """Return sample name -> its labels with their values."""
    status = {
        **sample_status(),
        "activation": {**STATUS, "plan": PLAN},
        "spending": build_spending(manager(), 1000).to_json(),
    }
    metrics = CoordinatorMetrics(lambda: status, sample_broadcast_turns)
    PrometheusSink(metrics.registry).write(7, STEP)
    metrics.upload_answer_s.observe(0.01)
    metrics.loop_lag_s.observe(0.01)
    found: dict[str, set[tuple[str, str]]] = {}
    families: list[Metric] = list(text_string_to_metric_families(metrics.render().decode()))
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, set()).update(sample.labels.items())
    return found
