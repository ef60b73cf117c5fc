"""Write the requests for an SGLang server's ``/generate``, and check what it answers. This module is pure.

Source: docs/basic_usage/sampling_params.md of sgl-project/sglang, and its ``GenerateReqInput``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.rollouts import Sampling

_ANSWER_BYTES = 16 << 10  # of one completion's answer, without its tokens
_TOKEN_BYTES = 512  # of one token: its text, its id, and its id with its log-probability
_SEED_BITS = 63  # the server keeps seeds as signed integers of 64 bits


class StaleAnswer(Exception):
    """Tokens of other weights than those asked for, or of an aborted request: the server was restarted or is shared."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The next tokens of one completion."""

    context: tuple[int, ...]  # prompt and tokens so far
    tokens_max: int
    sampling: Sampling
    seed: int  # 64 bits


@dataclass(frozen=True, slots=True)
class Answer:
    """New tokens with the log-probability of each; a stop token is the last one."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def generate_request(asked: Sequence[Asked]) -> dict[str, Any]:
    """Return the body of a request for all of these. Every parameter that the model's files could set is given."""
    return {
        "input_ids": [one.context for one in asked],
        "sampling_params": [_sampling_params(one) for one in asked],
        "return_logprob": True,
        "stream": False,
    }


def answers_bytes_max(asked: Sequence[Asked]) -> int:
    """Return the bytes that an answer to these may have at most."""
    return sum(_ANSWER_BYTES + one.tokens_max * _TOKEN_BYTES for one in asked)


def read_answers(body: bytes, asked: Sequence[Asked], weights: str, vocabulary_size: int) -> list[Answer]:
    """Return the checked answers, in the order of the requests.

    weights: the label of the weights (``weight_version``) that the tokens must come from.

    Raises:
        StaleAnswer: see there.
        MalformedMessage: it is not what a server answers to these requests.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise _malformed("it is not JSON") from None
    if not isinstance(found, list) or len(found) != len(asked):
        raise _malformed(f"it is not a list of {len(asked)} completions")
    return [_read_answer(one, request, weights, vocabulary_size) for one, request in zip(found, asked, strict=True)]


def _sampling_params(one: Asked) -> dict[str, Any]:
    return {
        "temperature": one.sampling.temperature,
        "max_new_tokens": one.tokens_max,
        "min_new_tokens": 0,
        "stop_token_ids": list(one.sampling.stop_token_ids),
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        # A server in deterministic mode gives every request without a seed the same one, and a group equal samples.
        "sampling_seed": one.seed & ((1 << _SEED_BITS) - 1),
    }


def _read_answer(found: Any, asked: Asked, weights: str, vocabulary_size: int) -> Answer:
    meta = found.get("meta_info") if isinstance(found, dict) else None
    if not isinstance(meta, dict):
        raise _malformed("a completion has no meta_info")
    if meta.get("weight_version") != weights:
        raise StaleAnswer(f"weights {str(meta.get('weight_version'))[:100]!r}, expected {weights!r}")
    reason = meta.get("finish_reason")
    if not isinstance(reason, dict) or reason.get("type") not in ("stop", "length"):
        raise StaleAnswer(f"finish reason {str(reason)[:100]!r}")
    entries = meta.get("output_token_logprobs")
    if not isinstance(entries, list) or not 1 <= len(entries) <= asked.tokens_max:
        raise _malformed(f"a completion does not have 1 to {asked.tokens_max} new tokens with log-probabilities")
    pairs = [_read_token(entry, vocabulary_size) for entry in entries]
    stops = asked.sampling.stop_token_ids
    end = next((number for number, (token, _) in enumerate(pairs, start=1) if token in stops), len(pairs))
    return Answer(tuple(token for token, _ in pairs[:end]), tuple(logprob for _, logprob in pairs[:end]))


def _read_token(entry: Any, vocabulary_size: int) -> tuple[int, float]:
    """Return the token and its log-probability of an entry [log-probability, token, text or null]."""
    if not isinstance(entry, list) or not 2 <= len(entry) <= 3:
        raise _malformed("an entry of output_token_logprobs is not [log-probability, token, text]")
    logprob, token = entry[:2]
    if type(token) is not int or not 0 <= token < vocabulary_size:
        raise _malformed(f"token {str(token)[:40]} is not one of the model's {vocabulary_size}")
    if type(logprob) not in (int, float) or not math.isfinite(logprob):
        raise _malformed(f"log-probability {str(logprob)[:40]} is not a finite number")
    return token, min(0.0, float(logprob))


def _malformed(cause: str) -> MalformedMessage:
    fix = "use an SGLang release that docs/engines.md names, and no other kind of server"
    return MalformedMessage("an answer of the SGLang server cannot be used", cause=cause, fix=fix)
