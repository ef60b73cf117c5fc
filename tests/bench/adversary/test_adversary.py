"""Test the figures about attackers, on margins that are made up."""

from __future__ import annotations

import json

import numpy as np
import pytest

import bench.__main__ as main
from bench.adversary import adversary, flood, lured, strangers
from bench.adversary.adversary import _over_all
from bench.adversary.attackers import ATTACKERS, RINGS, figures_of, finding
from bench.machine import Outcome
from rollcast.runtime.errors import ProcessFailed

BOUND = 0.01


def test_an_attacker_that_is_always_far_off_is_caught_by_its_first_rollout() -> None:
    found = figures_of(np.ones((20, 8), np.float32), BOUND, identities=10)
    assert (found.share, found.caught_share, found.caught_in_64, found.tokens_p99, found.trained) == (1, 1, 1, 8, 0)
    assert _over_all({"one": found})["tokens_p99_max"] == 8.0


def test_nobody_is_accused_of_honest_tokens() -> None:
    found = figures_of(np.zeros((20, 8), np.float32), BOUND, identities=10)
    assert (found.share, found.caught_share, found.tokens_p99) == (0.0, 0.0, float("inf"))


def test_rollouts_without_a_token_beyond_count_as_trained() -> None:
    margins = np.zeros((40, 8), np.float32)
    margins[0, 3] = 1.0
    found = figures_of(margins, BOUND, identities=50)
    assert found.caught_share == 1.0
    assert 20.0 < found.trained <= 39.0
    assert finding(margins[0], BOUND).far == 1


def test_the_zoo_has_at_least_fourteen_attackers() -> None:
    assert len(ATTACKERS) >= 14
    assert f"Try {len(ATTACKERS | RINGS)} kinds" in main.BENCHES["adversary"]["adversary"]


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["adversary", "--only", "zoo,nothing"]) == 64
    assert "no part 'nothing'" in capsys.readouterr().err


def test_a_part_that_fails_loses_no_other_parts_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object) -> float:
        raise ProcessFailed("the peer ended with status 1")

    monkeypatch.setattr(adversary, "framed_honest", lambda _seeds: (0, 7))
    monkeypatch.setattr(lured, "requests", fail)
    monkeypatch.setattr(flood, "run", lambda _arguments: Outcome({}, {"honest_p99_ratio": 1.5}))
    monkeypatch.setattr(strangers, "measure", fail)
    assert main.main(["adversary", "--json", "--only", "framed,lured,flood,strangers"]) == 1
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["figures"]["liars"], document["figures"]["honest_p99_ratio"]) == (7.0, 1.5)
    assert document["figures"]["ssrf_requests"] is document["figures"]["reward_loss_25"] is None
    assert list(document["failed"]) == ["lured", "strangers"]
    assert "the part lured failed: ProcessFailed" in printed.err


def test_the_addresses_that_members_lie_about_are_third_parties() -> None:
    assert all("{port}" in lie for lie in lured.LIES)


@pytest.mark.slow
def test_a_small_zoo_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--json",
        "--only",
        "zoo",
        "--honest-identities",
        "20",
        "--rollouts",
        "16",
        "--tokens",
        "16",
        "--honest-tokens",
        "500",
        "--identities",
        "20",
    ]
    assert main.main(["adversary", *options]) == 0
    assert '"false_accusations": 0' in capsys.readouterr().out
