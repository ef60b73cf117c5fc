"""Judge recorded rollouts again, with the weights of the versions that they claim, for `rollcast audit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from learner.audit.evidence import Record, read
from learner.evaluation.export import Policy, published
from rollcast.policy.logprobs import completion_logprobs
from rollcast.policy.noise import seed_words
from rollcast.runtime.errors import CheckpointError, MalformedMessage
from rollcast.wire.ids import Version

_LENGTH_STEP = 64  # rows are padded to multiples of this, so that few lengths are compiled


@dataclass(frozen=True, slots=True)
class Replayed:
    """A record and what its replay gave."""

    record: Record
    worst_nats: float | None  # largest margin among the judged tokens; None: a version is not kept any more
    confirmed: bool  # whether a judged token is beyond its bound here too


def replay(evidence: Path, run_folder: Path) -> list[Replayed]:
    """Replay every record of a file with the versions that a learner's run folder keeps.

    Raises:
        MalformedMessage: the file is not what the learner wrote.
        OSError: it cannot be read.
    """
    policies: dict[int, Policy | None] = {}
    score = jax.jit(completion_logprobs, static_argnums=0)

    def policy(version: int) -> Policy | None:
        if version not in policies:
            policies.clear()  # one at a time: records are in the order of steps
            try:
                policies[version] = published(run_folder, Version(version))
            except CheckpointError:
                policies[version] = None
        return policies[version]

    return [replay_one(record, policy, score) for record, _ in read(evidence)]


def replay_one(
    record: Record, policy: Callable[[int], Policy | None], score: Callable[..., object] = completion_logprobs
) -> Replayed:
    """Replay one record.

    Args:
        policy: returns the policy of a version; None: it is not known.
        score: rollcast.policy.logprobs.completion_logprobs, or a compiled form of it.

    Raises:
        MalformedMessage: a token is not of the model's vocabulary.
    """
    completion = [token for part in record.parts for token in part.token_ids]
    whole, first = [*record.prompt_token_ids, *completion], len(record.prompt_token_ids)
    length = -(-len(whole) // _LENGTH_STEP) * _LENGTH_STEP
    tokens = np.zeros((1, length), np.int32)
    tokens[0, : len(whole)] = whole
    positions = np.arange(length, dtype=np.int32)[None]
    segments = (positions < len(whole)).astype(np.int32)
    seeds = np.broadcast_to(np.array(seed_words(record.seed), np.uint32), (1, length, 2))
    worst, confirmed, start = 0.0, False, first
    for part in record.parts:
        end = start + len(part.token_ids)
        judged = [margin is not None for margin in record.margins_nats[start - first : end - first]]
        found = policy(part.version) if any(judged) else None
        if any(judged) and found is None:
            return Replayed(record, None, False)
        if found is not None:
            if max(whole) >= found.model.vocabulary_size:
                raise MalformedMessage(f"rollout {record.rollout_id} has a token that the model does not know")
            temperature = np.full(1, record.temperature, np.float32)
            scored = score(found.model, found.params, tokens, positions, segments, temperature, seeds=seeds)
            margins = np.asarray(scored.margins)[0, start:end][judged]  # type: ignore[attr-defined]
            worst = max(worst, float(margins.max()))
            confirmed = confirmed or bool((margins > part.bound_nats).any())
        start = end
    return Replayed(record, worst, confirmed)
