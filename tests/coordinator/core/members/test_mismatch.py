from __future__ import annotations

from coordinator.core.members import mismatch as module
from coordinator.core.members.mismatch import MismatchStatus, mismatch_status
from learner.alignment import mismatch, sampling_check

VALUES = {
    "mismatch_kl_k3": 0.1,
    "mismatch_ratio_mean": 1.05,
    "mismatch_outside_share": 0.05,
    "mismatch_reported_share": 0.5,
    "mismatch_peers_alarming": 1.0,
    "kl_k3:a": 0.0,
    "kl_k3:b": 0.4,
    "sampling_lacks_share": 0.01,
    "sampling_peers_alarming": 0.0,
    "lacks:a": 0.002,
}
ENGINES = [("a", "anna", "2 cores, jax"), ("b", "bert", "8 cores, torch")]


def test_an_alarm_names_the_worst_peer_and_its_engine() -> None:
    text = "log-probabilities of 1 peer are not the learner's: most of bert (8 cores, torch), k3-KL 0.4 nats a token"
    assert mismatch_status(VALUES, ENGINES) == MismatchStatus(
        0.1, 1.05, 0.05, 0.5, 1, {"anna": 0.0, "bert": 0.4}, 0.01, 0, {"anna": 0.002}, text
    )


def test_an_alarm_names_who_does_not_draw_at_random_also_where_nobody_reports() -> None:
    values = {"sampling_lacks_share": 0.4, "sampling_peers_alarming": 2.0, "lacks:b": 0.92, "lacks:gone": 0.3}
    found = mismatch_status(values, ENGINES)
    assert found is not None
    assert found.alarm == (
        "tokens of 2 peers are likelier than chance allows, as if drawn greedily or at a lower temperature: "
        "most of bert (8 cores, torch), 92% of the randomness is missing"
    )
    both = mismatch_status(VALUES | values, ENGINES)
    assert both is not None
    assert both.alarm.startswith("log-probabilities of 1 peer")
    assert both.alarm.endswith(found.alarm)
    assert both.sampling_peers == {"anna": 0.002, "bert": 0.92, "gone": 0.3}


def test_there_is_no_alarm_where_none_is_counted_and_nothing_where_nobody_reports() -> None:
    calm = mismatch_status({**VALUES, "mismatch_peers_alarming": 0.0}, ENGINES)
    assert calm is not None
    assert calm.alarm == ""
    assert mismatch_status({"loss": 1.0}, ENGINES) is None


def test_learner_and_coordinator_mean_the_same_keys() -> None:
    assert module.PEER_KEYS == (mismatch.PEER_KEY, sampling_check.PEER_KEY)
