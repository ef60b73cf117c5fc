"""Test the count of peers that liars frame."""

from __future__ import annotations

import pytest

from bench.adversary.framed import framed_honest
from rollcast.sim.mutants.gate import MUTANTS
from rollcast.sim.mutants.planting import planted


@pytest.mark.slow
def test_liars_frame_a_peer_only_where_words_are_believed() -> None:
    assert framed_honest(1)[0] == 0
    with planted(next(one for one in MUTANTS if one.name == "accused-without-a-receipt")):
        assert framed_honest(1)[0] > 0
