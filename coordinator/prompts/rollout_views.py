"""Show the scored rollouts of a run to people: pages of a list, and one as a conversation with its probabilities.

It reads the ledger, a bounded part for each page, and must not run on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from coordinator.ledger.sql import RunReader
from coordinator.ledger.sql_facts import peer_names
from coordinator.prompts.samples import TEXT_LENGTH_MAX
from coordinator.prompts.stored_rollouts import ROLLOUT_ID_MAX, Found, RolloutFilter, found_rollouts, text_of, turn_of
from coordinator.stores.reader import reading
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.tokenizer import UNKNOWN, TextTokenizer
from rollcast.wire.token_ids import ID_BYTES, id_count

PAGE_MAX = 200
PAGE_SCANNED_MAX = 4_000  # rollouts that one page looks at
TOKENS_SHOWN_MAX = 16_384  # of one rollout
BEGINNING_TOKENS = 48  # of a completion in a list
CHARACTER_TOKENS_MAX = 8  # tokens that may make one character together


@dataclass(frozen=True, slots=True)
class Headline:
    """A scored rollout in a list.

    Attributes:
        agent: name of the agent whose side of a game it is; empty if its problem has no agents.
        version: oldest version of its segments.
        age: learner steps between ``version`` and the step that trained on it; None if it was not trained on.
        state: filled, trained or dropped.
        beginning: how it begins; of an episode each turn and each answer stands on a line of its own.
    """

    rollout_id: int
    problem_id: str
    sample_index: int
    agent: str
    version: int
    peer: str
    age: int | None
    state: str
    tokens: int
    turns: int
    reward: float
    exact: bool
    detail: str
    parts: Mapping[str, float]
    beginning: str


@dataclass(frozen=True, slots=True)
class RolloutsPage:
    """One page, newest first. ``next_before`` is ``before`` of the next page, which may be empty; None: the last."""

    rollouts: tuple[Headline, ...]
    next_before: int | None


@dataclass(frozen=True, slots=True)
class TurnView:
    """One segment. ``tokens`` are pieces of ``text`` with their log-probabilities; empty if none were reported."""

    role: str
    version: int
    peer: str
    text: str
    tokens: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class RolloutView:
    """One rollout in full. ``tokens_left_out``: beyond those that are shown."""

    headline: Headline
    prompt: str
    answer: str
    turns: tuple[TurnView, ...]
    tokens_left_out: int


def rollouts_page(
    folder: RunFolder, tokenizer: TextTokenizer, limit: int, chosen: RolloutFilter, before: int = ROLLOUT_ID_MAX
) -> RolloutsPage:
    """Return up to ``limit`` rollouts that a filter chooses among the next PAGE_SCANNED_MAX older than ``before``.

    Raises:
        ConfigError: the run had no such peer.
        StoreError: the ledger cannot be read.
    """
    with reading(folder) as connection:
        above = _scanned_down_to(connection, before)
        found = list(islice(found_rollouts(connection, chosen, peer_names(connection), above, before), limit + 1))
    if len(found) > limit:
        next_before: int | None = found[limit - 1].rollout_id
    else:
        next_before = above + 1 if above >= 0 else None
    return RolloutsPage(tuple(_headline(one, tokenizer) for one in found[:limit]), next_before)


def rollout_view(folder: RunFolder, tokenizer: TextTokenizer, rollout_id: int) -> RolloutView | None:
    """Return one scored rollout; None if there is none with this id, or no longer.

    Raises:
        StoreError: the ledger cannot be read.
    """
    with reading(folder) as connection:
        names = peer_names(connection)
        found = next(found_rollouts(connection, RolloutFilter(), names, rollout_id - 1, rollout_id + 1), None)
    if found is None:
        return None
    headline = _headline(found, tokenizer)
    turns, room = list[TurnView](), TOKENS_SHOWN_MAX
    for segment in found.segments:
        if room == 0:
            break
        segment.packed_ids = segment.packed_ids[: ID_BYTES * room]  # of this copy, which nothing else reads
        del segment.reported_logprobs[room:]
        room -= id_count(segment.packed_ids)
        turn = turn_of(segment, tokenizer, names)
        pieces = token_pieces(tokenizer, turn.token_ids, turn.reported_logprobs, turn.text)
        turns.append(TurnView(turn.role, turn.version, turn.peer, turn.text, pieces))
    prompt, answer = (text[:TEXT_LENGTH_MAX] for text in (found.problem.prompt, found.problem.answer))
    return RolloutView(headline, prompt, answer, tuple(turns), headline.tokens - (TOKENS_SHOWN_MAX - room))


def token_pieces(
    tokenizer: TextTokenizer, ids: Sequence[int], logprobs: Sequence[float], text: str
) -> tuple[tuple[str, float], ...]:
    """Return the text's pieces with their log-probabilities; tokens that make one character together are one piece.

    Returns no pieces if the peer reported no log-probabilities, or if the pieces are not the text (tokenizers that
    decode a token differently at the beginning).
    """
    pieces, run, total = list[tuple[str, float]](), list[int](), 0.0
    for token, logprob in zip(ids, logprobs, strict=False):
        run.append(token)
        total += logprob
        piece = tokenizer.decode(run)
        if piece.endswith(UNKNOWN) and len(run) < CHARACTER_TOKENS_MAX:
            continue
        pieces.append((piece, total))
        run, total = [], 0.0
    if run:
        pieces.append((tokenizer.decode(run), total))
    return tuple(one for one in pieces if one[0]) if "".join(piece for piece, _ in pieces) == text else ()


def _scanned_down_to(connection: RunReader, before: int) -> int:
    """Return the newest id that a page leaves to the next one; -1 if the page reaches the oldest rollout."""
    row = connection.execute(
        "SELECT rollout_id FROM scores WHERE rollout_id < ? ORDER BY rollout_id DESC LIMIT 1 OFFSET ?",
        (before, PAGE_SCANNED_MAX),
    ).fetchone()
    return -1 if row is None else int(row[0])


def _headline(one: Found, tokenizer: TextTokenizer) -> Headline:
    return Headline(
        rollout_id=one.rollout_id,
        problem_id=one.problem.problem_id,
        sample_index=one.sample_index,
        agent=one.agent,
        version=one.version,
        peer=one.peer,
        age=one.age,
        state=one.state,
        tokens=one.tokens,
        turns=len(one.segments),
        reward=one.score.reward,
        exact=one.score.exact,
        detail=one.score.detail,
        parts=one.score.parts,
        beginning=_beginning(one.segments, tokenizer),
    )


def _beginning(segments: Sequence[pb.Segment], tokenizer: TextTokenizer) -> str:
    """Return the text of the first BEGINNING_TOKENS tokens."""
    first, room = list[pb.Segment](), BEGINNING_TOKENS
    for segment in segments:
        if not room:
            break
        first.append(pb.Segment(role=segment.role, packed_ids=segment.packed_ids[: ID_BYTES * room]))
        room -= id_count(first[-1].packed_ids)
    return text_of(first, tokenizer)
