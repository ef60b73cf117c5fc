"""Test that `bench failover` kills a real leader, and that the standby serves without a loss."""

from __future__ import annotations

import argparse

import pytest

from bench.durability import failover
from bench.stores.postgres_server import binaries

SEED_OF_ALL_FAULTS = 6


@pytest.mark.postgres
@pytest.mark.e2e
@pytest.mark.skipif(binaries() is None, reason="needs a PostgreSQL server: run `make test-postgres`")
@pytest.mark.timeout(600)
def test_a_standby_takes_over_without_a_loss() -> None:
    arguments = argparse.Namespace(rounds=3, peers=2, gateways=1, seed=SEED_OF_ALL_FAULTS, faults=list(failover.FAULTS))
    figures = failover.run(arguments).figures
    assert [figures[f"{fault}_rounds"] for fault in failover.FAULTS] == [1, 1, 1]
    assert (figures["rounds"], figures["acked_lost"], figures["trained_twice"]) == (3, 0, 0)
    assert figures["acked"] > 0
