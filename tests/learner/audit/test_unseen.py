"""Test the judgement of rollouts that are not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from learner.alignment.audit import Finding
from learner.audit.evidence import Evidence, read
from learner.audit.unseen import judge_unseen
from learner.publishing.versions import RetainedVersions
from learner.training.batch_check import BatchRules
from learner.training.packing import PackedBatch
from learner.training.trainer import Trainer
from rollcast.policy.logprobs import TokenStatistics
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import segment_to_pb
from rollcast.wire.rollouts import ENVIRONMENT, Segment
from rollcast.wire.token_ids import pack_ids

RULES = BatchRules(3, groups_per_step=1, samples_per_group=1, vocabulary_size=32, row_tokens=8)
CHEATED = 7  # the token that no seed gives


class FakeTrainer:
    """A pass in which the margin of one token is 1 nat and of all others 0; the versions it was asked for are kept."""

    model_config: Any = None

    def __init__(self) -> None:
        self.versions: list[int] = []

    def placed(self, version: int) -> int:
        return version

    def behaviour(self, version: int, packed: PackedBatch) -> TokenStatistics:
        self.versions.append(version)
        nothing = np.zeros(packed.tokens.shape, np.float32)
        margins = np.where(packed.tokens == CHEATED, np.float32(1.0), nothing)
        return TokenStatistics(**(dict.fromkeys(TokenStatistics._fields, nothing) | {"margins": margins}))


class Retained:
    def versions(self) -> list[Version]:
        return [Version(3), Version(4)]

    def host_params(self, version: Version, _config: Any) -> Version:
        return version


def rollout(number: int, *parts: tuple[int, tuple[int, ...]], peer: str = "a", sampler: str = "jax-cpu") -> Any:
    segments = [
        Segment(
            "assistant",
            Epoch(0),
            Version(version),
            PeerId(peer),
            pack_ids(tokens),
            b"\1" * len(tokens),
            sampler=sampler,
        )
        for version, tokens in parts
    ]
    return pb.TrainingRollout(
        rollout_id=number,
        prompt_token_ids=(2, 3),
        segments=map(segment_to_pb, segments),
        sampling=pb.Sampling(temperature=1.0),
        seed=5,
    )


def judge(tmp_path: Path, *rollouts: Any, trainer: FakeTrainer | None = None) -> list[Finding]:
    return judge_unseen(
        9,
        rollouts,
        cast(Trainer, trainer or FakeTrainer()),
        cast(RetainedVersions, Retained()),
        Evidence(tmp_path / "evidence.jsonl"),
        rules=RULES,
        row_tokens=8,
        bound=lambda sampler: 0.01 if sampler == "jax-cpu" else np.inf,
    )


def test_they_are_judged_under_their_versions_and_written_down_like_trained_ones(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    honest, cheat = rollout(1, (3, (4, 5)), (4, (6, 1))), rollout(2, (4, (4, CHEATED, 1)), peer="b")
    found = judge(tmp_path, honest, cheat, trainer=trainer)
    assert trainer.versions == [3, 4]
    assert [(one.peer_id, one.tokens, one.beyond, one.far) for one in found] == [("a", 4, 0, 0), ("b", 3, 1, 1)]
    (record,) = (record for record, _ in read(tmp_path / "evidence.jsonl"))
    assert (record.step, record.rollout_id, record.worst_nats) == (9, 2, 1.0)


def test_those_of_a_version_that_is_gone_are_left_out(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    assert judge(tmp_path, rollout(1, (2, (4,)), (3, (5,))), trainer=trainer) == []
    assert trainer.versions == []


def test_where_margins_prove_nothing_a_rollout_counts_without_tokens(tmp_path: Path) -> None:
    """Else a peer whose engine has no seeds, which the operator allows, would stay a newcomer for ever."""
    found = judge(tmp_path, rollout(1, (3, (4, CHEATED)), sampler="sglang"))
    assert [(one.tokens, one.beyond, one.bound_nats) for one in found] == [(0, 0, 0.0)]


def test_a_malformed_one_is_an_error_of_the_coordinator(tmp_path: Path) -> None:
    with pytest.raises(MalformedMessage):
        judge(tmp_path, rollout(1, (3, (99,))))


def test_what_an_environment_said_is_nobodys_work(tmp_path: Path) -> None:
    said = rollout(1, (3, (4, 5)))
    said.segments.append(segment_to_pb(Segment("tool", Epoch(0), Version(0), ENVIRONMENT, pack_ids((6,)), b"\0")))
    assert [(one.peer_id, one.tokens) for one in judge(tmp_path, said)] == [("a", 2)]
