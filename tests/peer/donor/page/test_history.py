from __future__ import annotations

from typing import Any

import pytest

from peer.donor.page import history
from peer.donor.page.history import COLUMNS, History


def report(sent: int = 0, received: int = 0, **readings: Any) -> dict[str, Any]:
    names = ("cpu_celsius", "gpu_celsius", "power_watts", "others_cpu_share")
    return {
        "tokens_per_second": 5.0,
        "chunk_bytes_sent": sent,
        "chunk_bytes_from_origin": received,
        "chunk_bytes_from_peers": received,
        "readings": {**dict.fromkeys(names), **readings},
    }


def test_rates_are_means_between_samples() -> None:
    kept = History()
    assert kept.newest() == []
    kept.sample(report(), 100.0)
    kept.sample(report(sent=50, received=20, cpu_celsius=61.0), 105.0)
    kept.sample(report(sent=10), 110.0)  # the process was started again
    kept.sample(report(sent=10), 110.0)  # the clock stood still
    rows = kept.to_json()["rows"]
    assert [row[2:4] for row in rows] == [[None, None], [10.0, 8.0], [0.0, 0.0], [None, None]]
    assert dict(zip(COLUMNS, rows[1], strict=True))["cpu_celsius"] == 61.0
    assert kept.newest() == rows[-1]


def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_SAMPLES_KEPT", 3)
    kept = History()
    for now in range(5):
        kept.sample(report(), float(now))
    assert [row[0] for row in kept.to_json()["rows"]] == [2.0, 3.0, 4.0]
