"""Read the scored rollouts of a run from its ledger, during a run too: chosen by what they are, with their segments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import dropwhile, groupby, islice
from pathlib import Path
from typing import Any

from coordinator.ledger.sql import RunReader
from coordinator.ledger.sql_facts import peer_names
from coordinator.prompts.samples import TRAINING, Sample, sample_of
from coordinator.stores.reader import reading
from coordinator.tasks.checks.task import Problem, Score
from rollcast.runtime.errors import ConfigError, RunFolderError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.data_files import optional_import
from rollcast.wire.text.tokenizer import TextTokenizer
from rollcast.wire.token_ids import id_count, unpack_ids

SCANNED_MAX = 200_000  # rollouts that are looked at for their length, which the ledger has only in their bodies
ROLLOUT_ID_MAX = 1 << 62
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
        return " AND ".join(texts) or "true", values


@dataclass(frozen=True, slots=True)
class Found:
    """A scored rollout as the ledger has it: nothing is decoded. ``state``: filled, trained or dropped.

    ``version`` is the oldest of its segments; ``age``: see RolloutFilter, None if it was not trained on.
    """

    rollout_id: int
    problem: Problem
    sample_index: int
    score: Score
    version: int
    peer: str
    age: int | None
    state: str
    segments: Sequence[Any]  # pb.Segment

    @property
    def agent(self) -> str:
        """Return the name of the agent that took its turns; empty unless its problem is a game of several agents."""
        agents = self.problem.data.get("agents", ())
        return str(agents[self.sample_index % len(agents)]) if agents else ""

    @property
    def tokens(self) -> int:
        return sum(id_count(segment.packed_ids) for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Turn:
    """One segment of a rollout. ``reported_logprobs``: one a token, or none if the peer reported none."""

    role: str
    version: int
    peer: str
    text: str
    token_ids: tuple[int, ...]
    reported_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StoredRollout(Sample):
    """A scored rollout. ``age``: see RolloutFilter; None if it was not trained on. ``peer``: of the last segment.

    ``completion`` of an episode of several turns is all of it, a line or more for each turn and each answer.
    ``agent``: the name of the agent whose side of a game it is; empty if its problem has no agents.
    """

    rollout_id: int = 0
    agent: str = ""
    peer: str = ""
    age: int | None = None
    turns: tuple[Turn, ...] = ()


def stored_rollouts(
    folder: RunFolder, tokenizer: TextTokenizer, limit: int, chosen: RolloutFilter | None = None
) -> list[StoredRollout]:
    """Return the newest scored rollouts of the ledger that a filter chooses, newest first.

    Raises:
        ConfigError: the run had no such peer.
        StoreError: the ledger cannot be read.
    """
    with reading(folder) as connection:
        names = peer_names(connection)
        found = found_rollouts(connection, chosen or RolloutFilter(), names)
        return [_decoded(one, tokenizer, names) for one in islice(found, limit)]


def found_rollouts(
    connection: RunReader,
    chosen: RolloutFilter,
    names: dict[str, str],
    above: int = -1,
    below: int = ROLLOUT_ID_MAX,
) -> Iterator[Found]:
    """Yield the rollouts that a filter chooses, newest first, with ids between two that are excluded.

    Raises:
        ConfigError: the run had no such peer.
    """
    condition, values = chosen.where(_ids_of(chosen.peer, names))
    cursor = connection.execute(
        "SELECT rollout_id, problem, sample_index, body, reward, exact, detail, parts, oldest_version,"
        " rollouts.peer_id, state, CASE WHEN state = 'trained' THEN over_at_step - oldest_version END FROM scores"
        " JOIN rollouts USING (rollout_id) JOIN attempts USING (lease_id, sample_index) JOIN groups USING (group_id)"
        f" WHERE rollout_id > ? AND rollout_id < ? AND {condition} ORDER BY rollout_id DESC LIMIT ?",
        (above, below, *values, SCANNED_MAX),
    )
    for rollout_id, problem, index, body, reward, exact, detail, parts, version, peer_id, state, age in cursor:
        segments = pb.Rollout.FromString(body).segments
        score = Score(reward, bool(exact), detail, json.loads(parts))
        peer = names.get(peer_id, peer_id)
        one = Found(rollout_id, Problem.from_json(problem), index, score, version, peer, age, state, segments)
        if (chosen.tokens_min or 0) <= one.tokens <= (one.tokens if chosen.tokens_max is None else chosen.tokens_max):
            yield one


def turn_of(segment: Any, tokenizer: TextTokenizer, names: dict[str, str]) -> Turn:
    """Return a segment with its text, which ends at its first stop token."""
    ids = unpack_ids(segment.packed_ids)
    shown = ids if segment.role == pb.ASSISTANT else _answer_of(ids, tokenizer)
    peer = names.get(segment.peer_id, segment.peer_id)
    logprobs = tuple(segment.reported_logprobs)
    return Turn(_ROLES[segment.role], segment.version, peer, tokenizer.decode(shown), ids, logprobs)


def _answer_of(ids: Iterable[int], tokenizer: TextTokenizer) -> Iterable[int]:
    """Return what follows a turn of the model, without the stop token that the turn lacks if its length ended it."""
    stops = tokenizer.stop_ids
    return dropwhile(lambda token: token in stops, ids)


def _decoded(one: Found, tokenizer: TextTokenizer, names: dict[str, str]) -> StoredRollout:
    text = text_of(one.segments, tokenizer)
    sample = sample_of(TRAINING, one.version, one.problem, one.sample_index, text, one.score)
    turns = tuple(turn_of(segment, tokenizer, names) for segment in one.segments)
    return StoredRollout(
        **asdict(sample), rollout_id=one.rollout_id, agent=one.agent, peer=one.peer, age=one.age, turns=turns
    )


def text_of(segments: Sequence[Any], tokenizer: TextTokenizer) -> str:
    """Return the text of a completion: of an episode each turn and each answer, on lines of their own.

    Several segments make one turn if a version or a peer took over in the middle of it.
    """
    texts = []
    for role, parts in groupby(segments, key=lambda segment: segment.role):
        ids: Iterable[int] = [token for part in parts for token in unpack_ids(part.packed_ids)]
        texts.append(tokenizer.decode(ids if role == pb.ASSISTANT else _answer_of(ids, tokenizer)))
    return "\n".join(texts)


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
    tokens = [("token_ids", arrow.list_(arrow.int32())), ("reported_logprobs", arrow.list_(arrow.float32()))]
    turn = arrow.struct([*_texts(arrow, "role", "peer", "text"), ("version", arrow.int64()), *tokens])
    schema = arrow.schema(
        [
            *_texts(arrow, "set", "problem_id", "prompt", "answer", "completion", "detail", "parts", "agent", "peer"),
            *((name, arrow.int64()) for name in ("rollout_id", "version", "sample_index", "age")),
            ("reward", arrow.float64()),
            ("exact", arrow.bool_()),
            ("turns", arrow.list_(turn)),
        ]
    )
    try:
        parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), path)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}", cause=str(error), fix="choose another file") from None


def _texts(arrow: Any, *names: str) -> list[tuple[str, Any]]:
    return [(name, arrow.string()) for name in names]
