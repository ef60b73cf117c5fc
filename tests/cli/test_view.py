from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rollcast.cli.view import line, render, sparkline, summary_table


def peer(name: str, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "peer_id": "12D3",
        "name": name,
        "role": "peer",
        "state": "generating",
        "reason": "64 rollouts with version 7",
        "active_version": 7,
        "version_lag": 1,
        "tokens_per_s": 512.0,
        "open_slots": 64,
        "accepted": 10,
        "dropped": 0,
        "last_seen_s": 0.4,
        "chunk_bytes_from_origin": 1,
        "chunk_bytes_from_peers": 2,
        "chunk_bytes_sent": 3,
        "hardware": "2 cores",
        "parents": ["origin"],
        "quarantined": False,
    }
    return values | changes


def status(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "run_name": "local",
        "run_id": "local-1",
        "phase": "running",
        "learner_phase": "training",
        "learner_detail": "",
        "step": 8,
        "steps": 200,
        "newest_version": 8,
        "staleness_limit": 4,
        "publish_every_steps": 1,
        "reward_train": 0.5,
        "reward_before": 0.31,
        "reward_after": None,
        "staleness_histogram": {"0": 30, "1": 10},
        "staleness_max_trained": 1,
        "staleness_needed": 3,
        "t_bcast_s": {"p50": 0.1, "p95": 0.2, "last": 0.1},
        "tokens_per_s": 1500.0,
        "waiting_for": "",
        "waiting_since_s": None,
        "next": "",
        "peers": [peer("peer-1"), peer("peer-2", quarantined=True, active_version=None, version_lag=None, parents=[])],
        "rollouts": {"issued": 100, "accepted": 90, "trained": 80, "open": 10, "dropped": {"peer_left": 10}},
        "peer_byte_share": 0.66,
        "learner_utilisation": 0.9,
        "reward_history": [[1, 0.3], [2, 0.5]],
        "elapsed_s": 75.0,
    }
    return values | changes


def text_of(renderable: Any) -> str:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    console.file.close()
    return console.export_text()


def test_screen_shows_what_a_person_asks() -> None:
    text = text_of(
        render(status(waiting_for="rollouts of version 8", waiting_since_s=3.0, next="2 groups"), {"peer-3": -9})
    )
    for expected in (
        "local · 1:15",
        "step 8/200",
        "waiting for rollouts of version 8 since 0:03; next: 2 groups",
        "0: 75%",
        "S = 4, needed 3",
        "quarantined",
        "dropped: 10 peer_left",
        "ended: peer-3 (status -9)",
        "66.0%",
    ):
        assert expected in text


def test_screen_before_anything_is_known() -> None:
    empty = status(
        newest_version=None,
        reward_train=None,
        reward_before=None,
        staleness_histogram={},
        staleness_needed=None,
        t_bcast_s={"p50": None, "p95": None, "last": None},
        peers=[],
        peer_byte_share=None,
        learner_utilisation=None,
        reward_history=[],
    )
    assert "version -" in text_of(render(empty, {}))
    assert "reward -" in line(empty)


def test_line() -> None:
    assert line(status()).startswith("[1:15] training: step 8/200  version 8  reward 0.500  T_bcast p95 0.200 s")


@given(st.lists(st.floats(-1, 2), max_size=300), st.integers(1, 80))
def test_sparkline_fits(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) == min(len(values), width)


@pytest.mark.parametrize(("values", "drawn"), [([], ""), ([0.0, 1.0], "▁█"), ([0.0, 0.0, 1.0, 1.0], "▁▁██")])
def test_sparkline(values: list[float], drawn: str) -> None:
    assert sparkline(values) == drawn


def test_summary_table() -> None:
    summary = {
        "reward_before": 0.3,
        "reward_after": 0.9,
        "staleness_limit": 4,
        "staleness_max_trained": 2,
        "peer_byte_share": 0.66,
        "rollouts": {"issued": 100, "trained": 80, "open": 0, "dropped": {"stale": 20}},
        "learner_utilisation": None,
        "t_bcast_s": {"p50": 0.1, "p95": None},
        "wall_s": 100.0,
    }
    text = text_of(summary_table(summary))
    assert "0.300 -> 0.900" in text
    assert "20 stale" in text
    assert "0.100 / - s" in text
