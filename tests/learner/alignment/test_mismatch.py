from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from learner.alignment.mismatch import DIFFERENCE_MAX, Mismatch, compare, figures
from learner.config import MismatchConfig
from learner.objective.config import ObjectiveConfig
from learner.training.packing import TrainingRow, pack
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.rollouts import Segment
from rollcast.wire.token_ids import pack_ids

HONEST, OFF = PeerId("honest"), PeerId("off")


def segment(peer: PeerId, reported: tuple[float, ...], mask: bytes = b"\1\1\1") -> Segment:
    return Segment("assistant", Epoch(0), Version(0), peer, pack_ids((3, 4, 5)), mask, reported)


def row(number: int, *segments: Segment) -> TrainingRow:
    return TrainingRow(number, 0, (7, 8), segments, 1.0, float(number))


def test_each_peers_reported_values_are_compared_with_recomputed_ones() -> None:
    rows = [
        row(0, segment(HONEST, (-1.0, -2.0, -3.0)), segment(OFF, (-1.0, -1.0, -9.0), b"\1\1\0")),
        row(1, segment(OFF, ())),
    ]
    for shared in (False, True):
        packed = pack(rows, time=16, objective=ObjectiveConfig(), completion_tokens_max=6, shared=shared)
        behaviour = np.full(packed.tokens.shape, 99.0, np.float32)
        line, span = packed.places[0]
        behaviour[line, span] = [50.0, 50.0, -1.0, -2.0, -3.0, -1.5, -0.9, 0.0]
        found = compare(rows, packed, behaviour)
        assert found[HONEST] == Mismatch(3, 0.0, 1.0, 0.0)
        differences = np.array([-0.5, 0.1])
        ratios = np.exp(differences)
        assert found[OFF].tokens == 2
        assert found[OFF].kl_k3 == pytest.approx(np.mean(ratios - 1.0 - differences), abs=1e-6)
        assert found[OFF].ratio_mean == pytest.approx(np.mean(ratios), abs=1e-6)
        assert found[OFF].outside_share == 0.5


def test_only_tokens_that_the_learner_scored_are_compared() -> None:
    rows = [row(0, segment(HONEST, (-1.0, -2.0, -3.0)), segment(OFF, (-1.0, -1.0, -9.0)))]
    packed = pack(rows, time=8, objective=ObjectiveConfig(), completion_tokens_max=6)
    behaviour = np.array([[0.0, 0.0, -1.0, -2.0, -7.0, np.nan, np.nan, np.nan]], np.float32)
    scored = np.array([[False, False, True, True, False, False, False, False]])
    assert compare(rows, packed, behaviour, scored) == {HONEST: Mismatch(2, 0.0, 1.0, 0.0)}


def test_numbers_that_are_none_are_far_off_and_stay_finite() -> None:
    rows = [row(0, segment(OFF, (math.nan, math.inf, -math.inf)))]
    packed = pack(rows, time=8, objective=ObjectiveConfig(), completion_tokens_max=3)
    found = compare(rows, packed, np.zeros(packed.tokens.shape, np.float32))[OFF]
    assert found.outside_share == 1.0
    assert math.isfinite(found.kl_k3)
    assert found.kl_k3 < math.exp(DIFFERENCE_MAX)


def test_a_report_has_the_batchs_figures_and_those_of_the_worst_peers() -> None:
    by_peer = {HONEST: Mismatch(30, 0.0, 1.0, 0.0), OFF: Mismatch(10, 0.4, 1.2, 0.2)}
    found = figures(by_peer, tokens=80, reported=60, config=MismatchConfig())
    assert found == pytest.approx(
        {
            "mismatch_kl_k3": 0.1,
            "mismatch_ratio_mean": 1.05,
            "mismatch_outside_share": 0.05,
            "mismatch_reported_share": 0.75,
            "mismatch_compared_share": 0.5,
            "mismatch_peers_alarming": 1.0,
            "kl_k3:honest": 0.0,
            "kl_k3:off": 0.4,
        }
    )
    assert figures({}, tokens=80, reported=60, config=MismatchConfig()) == {}


@pytest.mark.parametrize("worse", [{"kl_k3": 0.03}, {"ratio_mean": 0.9}, {"outside_share": 0.06}])
def test_each_threshold_alarms_by_itself(worse: dict[str, float]) -> None:
    fine = Mismatch(10, 0.001, 0.99, 0.01)
    assert not fine.alarms(MismatchConfig())
    assert replace(fine, **worse).alarms(MismatchConfig())
