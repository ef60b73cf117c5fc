from __future__ import annotations

from argparse import Namespace

import pytest

from bench.planner import replan


@pytest.mark.slow
def test_memory_starts_fewer_workers_and_keeps_the_learner_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replan, "spot_instances", lambda: [(0.0, 12), (900.0, 9), (1800.0, 12), (3600.0, 12)])
    figures = replan.run(Namespace(seeds=0, hours=1.0, start_s=120.0, share=0.5, discount=0.3)).figures
    assert figures["starts_per_h"] < figures["starts_per_h_memoryless"]
    assert figures["utilisation"] >= figures["utilisation_memoryless"]
