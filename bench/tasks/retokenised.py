"""Count the tokens of episodes that are tokenised again or changed between two turns. There should be none."""

from __future__ import annotations

import asyncio
import sqlite3
import struct
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from coordinator.config.config import CoordinatorConfig
from coordinator.environments.player import reply_tokens, turn_of
from coordinator.environments.pool import EnvironmentPool
from coordinator.prompts.tokenizers import stored_tokenizer
from coordinator.recovery.resume import TOKENIZER
from coordinator.tasks.build import environments_of
from coordinator.tasks.checks.task import Problem
from rollcast.wire.ids import EpisodeId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.chat_template import Message
from rollcast.wire.text.tokenizer import TextTokenizer
from rollcast.wire.token_ids import unpack_ids
from tests.wire.text.published_templates import PUBLISHED, Published

EPISODES_MAX = 200  # of a run that are played again
TURNS = (
    "<think>\nTwelve and thirty-four.\n</think>\n\nI add.",
    '<tool_call>\n{"name": "add", "arguments": {"a": 12, "b": 34}}\n</tool_call>',
    '{"name": "add", "parameters": {"a": 12, "b": 34}}',
    "46",
)
REPLIES: tuple[tuple[Message, ...], ...] = (
    ({"role": "user", "content": "Go on."},),
    ({"role": "tool", "content": "46"}, {"role": "tool", "content": "47"}),
    ({"role": "tool", "content": '{"sum": 46}'},),
    ({"role": "user", "content": "Sure?\n"},),
)


def retokenised_by_templates() -> int:
    """Return the tokens that change in an episode with each of the published chat templates, 0 if all is well.

    Each turn once ends with a stop token and once is cut off.
    """
    with tempfile.TemporaryDirectory(prefix="rollcast-bench-") as folder:
        return sum(_of_template(one, Path(folder) / str(number)) for number, one in enumerate(PUBLISHED))


def _of_template(published: Published, folder: Path) -> int:
    tokenizer = published.tokenizer(folder)
    changed = 0
    for ends in (tokenizer.stop_ids[:1], ()):
        said = tokenizer.encode_chat([{"role": "user", "content": "What is 12 + 34?"}])
        history = [tuple(said)]
        for text, reply in zip(TURNS, REPLIES, strict=True):
            said += [*tokenizer.encode(text), *ends]
            history.append(tuple(said))
            said += tokenizer.encode_reply(reply, ended=bool(ends))
            history.append(tuple(said))
        changed += changed_tokens(history)
    return changed


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """An episode of a run: its problem and its tokens. ``segments``: (whether the policy generated it, tokens)."""

    problem: Problem
    prompt: tuple[int, ...]
    segments: tuple[tuple[bool, tuple[int, ...]], ...]


def retokenised_in_run(run_folder: Path, config: CoordinatorConfig) -> int:
    """Return how many tokens of a run's newest episodes are not those that their environment answers when asked again.

    Newly opened environments are sent the recorded turns, and their replies are rendered again. Games of several
    agents are not played again.

    Raises:
        TaskError: an environment does not start.
    """
    episodes, tokenizer_json = stored_episodes(run_folder)
    tokenizer = stored_tokenizer(config.tokenizer, tokenizer_json)
    return asyncio.run(_replay(episodes, EnvironmentPool(environments_of(config.task, {}), 1, 1), tokenizer))


def stored_episodes(run_folder: Path) -> tuple[list[StoredEpisode], str]:
    """Return the newest EPISODES_MAX episodes of a run, and its tokenizer as JSON.

    Games of several agents are left out: one agent's episode does not have what the environment was sent in between.
    """
    with closing(sqlite3.connect(f"file:{run_folder / 'store.sqlite'}?mode=ro", uri=True)) as database:
        rows = database.execute(
            "SELECT groups.problem, groups.prompt_token_ids, rollouts.body FROM rollouts"
            " JOIN attempts USING (lease_id, sample_index) JOIN groups USING (group_id)"
            " WHERE groups.agents = 1 ORDER BY rollout_id DESC LIMIT ?",
            (EPISODES_MAX,),
        ).fetchall()
        (tokenizer_json,) = database.execute("SELECT value FROM meta WHERE key = ?", (TOKENIZER,)).fetchone()
    return [_stored(*row) for row in rows], tokenizer_json


def _stored(problem: str, prompt: bytes, body: bytes) -> StoredEpisode:
    segments = pb.Rollout.FromString(body).segments
    generated = [(one.role == pb.ASSISTANT, unpack_ids(one.packed_ids)) for one in segments]
    return StoredEpisode(Problem.from_json(problem), struct.unpack(f"<{len(prompt) // 4}I", prompt), tuple(generated))


async def _replay(episodes: Sequence[StoredEpisode], pool: EnvironmentPool, tokenizer: TextTokenizer) -> int:
    await pool.start()
    try:
        return sum([await _changed(EpisodeId(n), one, pool, tokenizer) for n, one in enumerate(episodes, start=1)])
    finally:
        await pool.close()


async def _changed(number: EpisodeId, one: StoredEpisode, pool: EnvironmentPool, tokenizer: TextTokenizer) -> int:
    start = await pool.open(number, one.problem.data["environment"], one.problem.data["seed"])
    stored, again = [one.prompt], [tuple(tokenizer.encode_chat(start.messages, start.tools))]
    for generated, run in groupby(one.segments, key=lambda segment: segment[0]):
        tokens = tuple(token for _, part in run for token in part)
        if generated:
            said = tokens
            reply = await pool.step(number, turn_of(tokenizer.decode(said), tokenizer.tool_format))
        else:
            stored.append(tokens)
            again.append(reply_tokens(tokenizer, reply.messages, said))
    await pool.close_episode(number)
    return sum(_differing(a, b) for a, b in zip(stored, again, strict=True))


def changed_tokens(history: Sequence[Sequence[int]]) -> int:
    """Return how many tokens of an episode are not what they were at the turn before, or are gone."""
    return sum(_differing(before, after[: len(before)]) for before, after in pairwise(history))


def _differing(one: Sequence[int], other: Sequence[int]) -> int:
    return abs(len(one) - len(other)) + sum(a != b for a, b in zip(one, other, strict=False))
