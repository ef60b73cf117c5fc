"""Test the measurement of caps on links, and of a pause that is quiet at once."""

from __future__ import annotations

import json

import pytest

from bench.__main__ import main
from bench.people.pause import Sample, figures_of


def samples(cpu_share: float, *, busy_until_s: float = 0.0, link_bytes_s: float = 0.0) -> list[Sample]:
    times = [index * 0.1 for index in range(60)]
    busy = [min(at, busy_until_s) for at in times]
    return [
        Sample(at, extra + cpu_share * at, int(500 * at), int(link_bytes_s * at))
        for at, extra in zip(times, busy, strict=True)
    ]


def test_a_quiet_peer_is_quiet_at_once() -> None:
    figures = figures_of(samples(0.004), 0.0)
    assert figures["pause_cpu_share"] == pytest.approx(0.004)
    assert (figures["pause_quiet_s"], figures["pause_link_bytes"]) == (0.0, 0.0)


def test_a_peer_that_works_on_for_a_while_is_not_quiet() -> None:
    figures = figures_of(samples(0.004, busy_until_s=0.5), 0.0)
    assert figures["pause_quiet_s"] == pytest.approx(0.5, abs=0.11)
    assert figures_of(samples(0.004, link_bytes_s=100), 0.0)["pause_quiet_s"] > 4


def test_it_measures_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["caps", "--only", "caps", "--seconds", "0.3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    figures = document["figures"]
    assert set(figures) >= {"error_up", "error_down"}
    for cap in document["settings"]["caps_mbit_s"]:
        assert figures[f"upload_{cap:g}_mbit_s"] > 0
        assert figures[f"download_{cap:g}_mbit_s"] > 0
