"""Test that `bench gateways` kills a real core and a real gateway, each once, and that peers go on without a loss."""

from __future__ import annotations

import argparse

import pytest

from bench.durability import gateways
from rollcast.runtime.logs import configure_logging


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_when_the_core_or_a_gateway_dies() -> None:
    try:
        figures = gateways.run(argparse.Namespace(rounds=2, gateways=2, peers=4, seed=1)).figures
    finally:
        configure_logging("test")  # which closes the benchmark's log file
    assert (figures["rounds"], figures["acked_lost"], figures["trained_twice"]) == (2, 0, 0)
    assert (figures["batches_changed"], figures["unaccounted"]) == (0, 0)
    assert figures["sessions_reopened"] == 0, "gateways keep the sessions while the core is away"
    assert figures["acked"] > 0
