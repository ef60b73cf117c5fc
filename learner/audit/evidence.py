"""Write down rollouts that were left out because of their margins, so that anybody with the weights can judge again.

A record holds all that decides its tokens: prompt, seed, temperature, versions, and the tokens themselves, with each
token's margin and bound. Records form a chain: each names the hash of the one before, so that none can be changed or
left out later without all that follow being written anew.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from blake3 import blake3

from learner.training.packing import PackedBatch, TrainingRow
from rollcast.runtime.errors import MalformedMessage

RECORDS_PER_PEER_MAX = 20  # enough to convict; more would let a peer fill the disk
FILE_BYTES_MAX = 256 << 20
_NOTHING_BEFORE = "0" * 64

Array = np.ndarray[Any, Any]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens that one peer sampled with one version, or that an environment said, whose margins are not known."""

    peer_id: str
    sampler: str
    version: int
    bound_nats: float
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One rollout with a token beyond its bound."""

    step: int
    rollout_id: int
    prompt_token_ids: tuple[int, ...]
    seed: int
    temperature: float
    parts: tuple[Part, ...]
    margins_nats: tuple[float | None, ...]  # of each token of the completion; None: it was not judged

    @property
    def worst_nats(self) -> float:
        """Return the largest margin."""
        return max((margin for margin in self.margins_nats if margin is not None), default=0.0)


class Evidence:
    """The file of a run's records, which is appended to. A rollout is recorded once, also if its step is replayed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._previous, self._rollouts, self._by_peer = _NOTHING_BEFORE, set[int](), Counter[str]()
        try:
            for record, digest in read(path):
                self._note(record, digest)
        except FileNotFoundError:
            pass
        except MalformedMessage as error:  # as a crash leaves it: the whole lines stay readable under another name
            kept = path.with_suffix(".torn.jsonl")
            _log.error("the file of evidence is not whole; a new one is begun", cause=error.what, kept=str(kept))
            path.replace(kept)
            self._previous = _NOTHING_BEFORE

    def add(self, step: int, rows: Sequence[TrainingRow], packed: PackedBatch, margins: Array, bounds: Array) -> None:
        """Record the rollouts of a step that have a judged token beyond its bound.

        Args:
            margins: f32 [rows, time], NaN where unknown.
            bounds: f32 [rows, time], not finite where nothing is judged.
        """
        judged = np.isfinite(bounds) & np.isfinite(margins)
        for row, place in zip(rows, packed.places, strict=True):
            beyond = (judged[place] & (margins[place] > bounds[place]))[len(row.prompt_token_ids) :]
            if beyond.any() and row.rollout_id not in self._rollouts:
                first = len(row.prompt_token_ids)
                found = np.where(judged[place], margins[place], np.nan)[first:]
                record = _record(step, row, found.tolist(), bounds[place][first:].tolist())
                if any(self._by_peer[part.peer_id] < RECORDS_PER_PEER_MAX for part in record.parts):
                    self._append(record)

    def _append(self, record: Record) -> None:
        body, digest = _chained(record, self._previous)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"record": body, "hash": digest}) + "\n")
        self._note(record, digest)

    def _note(self, record: Record, digest: str) -> None:
        self._previous = digest
        self._rollouts.add(record.rollout_id)
        self._by_peer.update({part.peer_id for part in record.parts})


def read(path: Path) -> Iterator[tuple[Record, str]]:
    """Yield the records of a file with their hashes, in order.

    Raises:
        MalformedMessage: the file is too large, a line is no record, or the chain is broken.
        OSError: the file cannot be read.
    """
    if path.stat().st_size > FILE_BYTES_MAX:
        raise MalformedMessage(f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB", fix="give a file of evidence")
    previous = _NOTHING_BEFORE
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                found = json.loads(line)
                record, digest = _record_of(found["record"]), str(found["hash"])
            except (ValueError, TypeError, KeyError, RecursionError):
                raise MalformedMessage(f"line {number} of {path} is no record of evidence") from None
            if _chained(record, previous)[1] != digest:
                raise MalformedMessage(
                    f"line {number} of {path} does not follow from the one before",
                    cause="a record was changed, or one is missing",
                    fix="ask for the file as the learner wrote it",
                )
            previous = digest
            yield record, digest


def _record(step: int, row: TrainingRow, margins: list[float], bounds: list[float]) -> Record:
    parts, start, margins = [], 0, list(margins)
    for segment in row.segments:
        end = start + segment.token_count
        if not segment.is_generated:  # what an environment said was not sampled: nothing of it can be judged
            margins[start:end] = [math.nan] * (end - start)
        bound = next((one for one in bounds[start:end] if math.isfinite(one)), math.inf)
        parts.append(Part(segment.peer_id, segment.sampler, segment.version, bound, segment.token_ids))
        start = end
    known = tuple(margin if math.isfinite(margin) else None for margin in margins)
    return Record(step, row.rollout_id, row.prompt_token_ids, row.seed, row.temperature, tuple(parts), known)


def _chained(record: Record, previous: str) -> tuple[dict[str, Any], str]:
    """Return a record as JSON values, and its hash, which covers the hash of the record before."""
    body: dict[str, Any] = {
        "previous": previous,
        "step": record.step,
        "rollout_id": record.rollout_id,
        "prompt_token_ids": list(record.prompt_token_ids),
        "seed": f"{record.seed:016x}",
        "temperature": record.temperature,
        "margins_nats": list(record.margins_nats),
        "parts": [
            {
                "peer_id": part.peer_id,
                "sampler": part.sampler,
                "version": part.version,
                "bound_nats": part.bound_nats if math.isfinite(part.bound_nats) else None,
                "token_ids": list(part.token_ids),
            }
            for part in record.parts
        ],
    }
    return body, blake3(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _record_of(body: dict[str, Any]) -> Record:
    parts = tuple(
        Part(
            str(part["peer_id"]),
            str(part["sampler"]),
            int(part["version"]),
            math.inf if part["bound_nats"] is None else float(part["bound_nats"]),
            tuple(int(token) for token in part["token_ids"]),
        )
        for part in body["parts"]
    )
    margins = tuple(None if margin is None else float(margin) for margin in body["margins_nats"])
    prompt = tuple(int(token) for token in body["prompt_token_ids"])
    if not prompt or len(margins) != sum(len(part.token_ids) for part in parts):
        raise ValueError("the tokens do not fit the margins")
    seed, temperature = int(body["seed"], 16), float(body["temperature"])
    return Record(int(body["step"]), int(body["rollout_id"]), prompt, seed, temperature, parts, margins)
