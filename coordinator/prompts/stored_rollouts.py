"""Read the scored rollouts of a run from its ledger, during a run too: chosen by what they are, with their segments."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coordinator.ledger.story import peer_names, reading
from coordinator.prompts.samples import TRAINING, Sample, sample_of
from coordinator.tasks.checks.task import Problem, Score
from rollcast.runtime.errors import ConfigError, RunFolderError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.data_files import optional_import
from rollcast.wire.text.tokenizer import TextTokenizer

SCANNED_MAX = 200_000  # rollouts that are looked at for their length, which the ledger has only in their bodies
_ROLES = {value: name.lower() for name, value in pb.SegmentRole.items()}
_PEER_ID = "12D3KooW"  # begins the id of every peer; its event of joining, which has its name, may be archived


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    """Which rollouts to read; None or empty: any."""

    reward_min: float | None = None
    reward_max: float | None = None
    age_min: int | None = None  # learner steps between its oldest version and the step that trained on it
    age_max: int | None = None
    tokens_min: int | None = None  # of the completion
    tokens_max: int | None = None
    peer: str = ""  # name or id
    problem: str = ""  # id
    version: int | None = None  # oldest version of its segments
    wrong: bool = False  # only those that are not entirely correct

    def where(self, peers: Sequence[str]) -> tuple[str, list[Any]]:
        """Return the condition in SQL with its values; ``peers`` are the ids that ``peer`` stands for."""
        age = "(state = 'trained' AND over_at_step - oldest_version {} ?)"
        parts = [
            ("reward >= ?", self.reward_min),
            ("reward <= ?", self.reward_max),
            (age.format(">="), self.age_min),
            (age.format("<="), self.age_max),
            ("problem_id = ?", self.problem or None),
            ("oldest_version = ?", self.version),
            ("exact = ?", 0 if self.wrong else None),
        ]
        given = [(text, value) for text, value in parts if value is not None]
        texts, values = [text for text, _ in given], [value for _, value in given]
        if self.peer:
            texts.append(f"rollouts.peer_id IN ({', '.join('?' * len(peers))})")
            values += peers
        return " AND ".join(texts) or "1", values


@dataclass(frozen=True, slots=True)
class Turn:
    """One segment of a rollout as text."""

    role: str
    version: int
    peer: str
    text: str


@dataclass(frozen=True, slots=True)
class StoredRollout(Sample):
    """A scored rollout. ``age``: see RolloutFilter; None if it was not trained on. ``peer``: of the last segment."""

    rollout_id: int = 0
    peer: str = ""
    age: int | None = None
    turns: tuple[Turn, ...] = ()
    token_ids: tuple[int, ...] = ()
    reported_logprobs: tuple[float, ...] = ()  # of generated tokens, as far as peers reported them


def stored_rollouts(
    folder: RunFolder, tokenizer: TextTokenizer, limit: int, chosen: RolloutFilter | None = None
) -> list[StoredRollout]:
    """Return the newest scored rollouts of the ledger that a filter chooses, newest first.

    Raises:
        ConfigError: the run had no such peer.
        StoreError: the ledger cannot be read.
    """
    chosen = chosen or RolloutFilter()
    with reading(folder.ledger) as connection:
        names = peer_names(connection)
        condition, values = chosen.where(_ids_of(chosen.peer, names))
        cursor = connection.execute(
            "SELECT rollout_id, problem, sample_index, body, reward, exact, detail, parts, oldest_version,"
            " rollouts.peer_id, CASE WHEN state = 'trained' THEN over_at_step - oldest_version END FROM scores"
            " JOIN rollouts USING (rollout_id) JOIN attempts USING (lease_id, sample_index)"
            f" JOIN groups USING (group_id) WHERE {condition} ORDER BY rollout_id DESC LIMIT ?",
            (*values, SCANNED_MAX),
        )
        return list(_chosen(cursor, chosen, limit, tokenizer, names))


def _chosen(
    cursor: sqlite3.Cursor, chosen: RolloutFilter, limit: int, tokenizer: TextTokenizer, names: dict[str, str]
) -> Iterator[StoredRollout]:
    found = 0
    for row in cursor:
        segments = pb.Rollout.FromString(row[3]).segments
        tokens = sum(len(segment.token_ids) for segment in segments)
        if not (chosen.tokens_min or 0) <= tokens <= (tokens if chosen.tokens_max is None else chosen.tokens_max):
            continue
        yield _read(row, segments, tokenizer, names)
        found += 1
        if found == limit:
            return


def _read(
    row: Sequence[Any], segments: Sequence[Any], tokenizer: TextTokenizer, names: dict[str, str]
) -> StoredRollout:
    rollout_id, problem, index, _, reward, exact, detail, parts, version, peer_id, age = row
    token_ids = tuple(token for segment in segments for token in segment.token_ids)
    score = Score(reward, bool(exact), detail, json.loads(parts))
    sample = sample_of(TRAINING, version, Problem.from_json(problem), index, tokenizer.decode(token_ids), score)
    turns = tuple(
        Turn(_ROLES[one.role], one.version, names.get(one.peer_id, one.peer_id), tokenizer.decode(one.token_ids))
        for one in segments
    )
    return StoredRollout(
        **asdict(sample),
        rollout_id=rollout_id,
        peer=names.get(peer_id, peer_id),
        age=age,
        turns=turns,
        token_ids=token_ids,
        reported_logprobs=tuple(value for segment in segments for value in segment.reported_logprobs),
    )


def _ids_of(peer: str, names: dict[str, str]) -> list[str]:
    """Return the ids of the peers that a name, or an id, stands for.

    Raises:
        ConfigError: there is none.
    """
    found = [peer] if peer.startswith(_PEER_ID) else [peer_id for peer_id, name in names.items() if peer == name]
    if peer and not found:
        known = ", ".join(sorted(names.values())[:12])
        raise ConfigError(f"the run had no peer {peer!r}", cause=f"it had {known or 'none'}", fix="correct --peer")
    return found


def write_parquet(rollouts: Sequence[StoredRollout], path: Path) -> None:
    """Write rollouts as a Parquet file with a row for each; the parts of the reward are a column of JSON objects.

    Raises:
        MissingExtra: pyarrow is not installed.
        RunFolderError: the file exists or cannot be written.
    """
    arrow = optional_import("pyarrow", "parquet files need the package pyarrow", "data")
    parquet = optional_import("pyarrow.parquet", "parquet files need the package pyarrow", "data")
    if path.exists():
        raise RunFolderError(f"{path} exists already", cause="nothing is overwritten", fix="choose another file")
    rows = [asdict(one) | {"parts": json.dumps(one.parts)} for one in rollouts]
    turn = arrow.struct([("role", arrow.string()), ("version", arrow.int64()), *_texts(arrow, "peer", "text")])
    schema = arrow.schema(
        [
            *_texts(arrow, "set", "problem_id", "prompt", "answer", "completion", "detail", "parts", "peer"),
            *((name, arrow.int64()) for name in ("rollout_id", "version", "sample_index", "age")),
            ("reward", arrow.float64()),
            ("exact", arrow.bool_()),
            ("turns", arrow.list_(turn)),
            ("token_ids", arrow.list_(arrow.int32())),
            ("reported_logprobs", arrow.list_(arrow.float32())),
        ]
    )
    try:
        parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), path)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}", cause=str(error), fix="choose another file") from None


def _texts(arrow: Any, *names: str) -> list[tuple[str, Any]]:
    return [(name, arrow.string()) for name in names]
