"""Test that `bench failover` kills a real leader, and that the standby serves without a loss."""

from __future__ import annotations

import argparse

import pytest

from bench.durability import failover
from bench.fleet.postgres_server import binaries


@pytest.mark.postgres
@pytest.mark.e2e
@pytest.mark.skipif(binaries() is None, reason="needs a PostgreSQL server: run `make test-postgres`")
@pytest.mark.timeout(600)
def test_a_standby_takes_over_without_a_loss() -> None:
    figures = failover.run(argparse.Namespace(rounds=1, peers=2, seed=0)).figures
    assert (figures["rounds"], figures["acked_lost"], figures["trained_twice"]) == (1, 0, 0)
    assert figures["acked"] > 0
