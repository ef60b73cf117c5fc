"""Test the chain of evidence, and that its replay gives the same verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from learner.audit.evidence import RECORDS_PER_PEER_MAX, Evidence, read
from learner.audit.replay import replay_one
from learner.evaluation.export import Policy
from learner.objective.config import ObjectiveConfig
from learner.training.packing import pack
from rollcast.policy.logprobs import completion_logprobs
from rollcast.policy.noise import seed_words
from rollcast.policy.params import initial_params
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.rollouts import observation
from tests.learner.audit.evidence_file import BOUND, SEED, rows_of, written
from tests.learner.tiny import MODEL


def test_records_hold_all_that_decides_the_tokens_and_a_replayed_step_adds_none(tmp_path: Path) -> None:
    path = tmp_path / "evidence.jsonl"
    assert written(path, 1, off=BOUND / 2) == []
    first = written(path, 1)
    assert written(path, 1, 2)[:1] == first
    (record, _) = written(path, 1, 2)
    assert (record.step, record.rollout_id, record.seed, record.prompt_token_ids) == (7, 1, SEED, (2, 3))
    assert record.margins_nats == (0.0, 0.0, 1.0, 0.0)
    assert [(one.peer_id, one.version, one.token_ids) for one in record.parts] == [("a", 3, (4, 5)), ("b", 4, (6, 1))]
    assert len(written(path, *range(100))) == RECORDS_PER_PEER_MAX


@pytest.mark.parametrize("spoil", ["change", "leave out", "tear"])
def test_a_changed_chain_is_refused_and_a_learner_begins_another(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / "evidence.jsonl"
    written(path, 1, 2, 3)
    lines = path.read_text().splitlines(keepends=True)
    if spoil == "change":
        found = json.loads(lines[1])
        found["record"]["margins_nats"][0] = 0.5
        lines[1] = json.dumps(found) + "\n"
    elif spoil == "leave out":
        del lines[1]
    else:
        lines[2] = lines[2][:40]
    path.write_text("".join(lines))
    with pytest.raises(MalformedMessage):
        list(read(path))
    assert [record.rollout_id for record in written(path, 9)] == [9]
    assert path.with_suffix(".torn.jsonl").exists()


def test_a_replay_gives_the_recorded_margins_and_the_verdict(tmp_path: Path) -> None:
    (record,) = written(tmp_path / "evidence.jsonl", 1)
    policies = {version: Policy(version, MODEL, initial_params(MODEL, version), "") for version in (3, 4)}
    found = replay_one(record, policies.get)
    whole = jnp.array([[2, 3, 4, 5, 6, 1]], jnp.int32)
    positions, ones = jnp.arange(6, dtype=jnp.int32)[None], jnp.ones((1, 6), jnp.int32)
    seeds = jnp.broadcast_to(jnp.array(seed_words(SEED), jnp.uint32), (1, 6, 2))
    expected = [
        completion_logprobs(MODEL, policies[version].params, whole, positions, ones, jnp.ones(1), seeds=seeds).margins[
            0
        ]
        for version in (3, 4)
    ]
    worst = max(*expected[0][2:4].tolist(), *expected[1][4:6].tolist())
    assert found.worst_nats == pytest.approx(worst, abs=1e-5)
    assert found.confirmed == (worst > BOUND)
    assert found.confirmed, "these tokens were not sampled from any seed"
    assert replay_one(record, {3: policies[3]}.get).worst_nats is None, "version 4 is not kept"


def test_what_an_environment_said_is_in_the_context_of_a_record_and_never_judged(tmp_path: Path) -> None:
    rows, packed = rows_of(1)
    (row,) = rows
    said = observation("tool", (7, 7))
    rows = [replace(row, segments=(row.segments[0], said, row.segments[1]))]
    packed = pack(rows, time=8, objective=ObjectiveConfig(), completion_tokens_max=6)
    margins = np.full(packed.tokens.shape, 1.0, np.float32)  # a pass scores every token of the row
    bounds = np.where(packed.loss_mask, np.float32(BOUND), np.float32(np.inf))
    assert not packed.loss_mask[0, 4:6].any()
    assert packed.loss_mask[0, 2:4].all()
    Evidence(tmp_path / "evidence.jsonl").add(7, rows, packed, margins, bounds)
    ((record, _),) = read(tmp_path / "evidence.jsonl")
    assert record.margins_nats == (1.0, 1.0, None, None, 1.0, 1.0)
    assert [one.token_ids for one in record.parts] == [(4, 5), (7, 7), (6, 1)]
    asked: list[int] = []

    def unknown(version: int) -> None:
        asked.append(version)

    replay_one(record, unknown)
    assert asked == [3]
