from __future__ import annotations

import json
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

from bench.tasks.environments import batch_rewards, mean
from bench.tasks.retokenised import changed_tokens, retokenised_by_templates, retokenised_in_run
from coordinator.config.config import CoordinatorConfig
from coordinator.config.environments import GymTask
from coordinator.tasks.environment import environment_name
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.token_ids import pack_ids

GAME = Path(__file__).parents[3] / "examples" / "guessing" / "game.py"
TASK = GymTask(kind="gym", path=f"{GAME}:Guess")
TOKENIZER = Tokenizer(("guess 1-7:",), "1234567<>?")
SEED = 3  # the number is 2


def ledger(folder: Path, *answers: str) -> None:
    """Write a run with one episode, whose guesses are 5, 6, ... and were answered like this, and with two steps."""
    problem = ["gym:0", "guess 1-7:", "", {"environment": environment_name(TASK), "seed": SEED}]
    body = pb.Rollout()
    for guess, answer in zip("567", answers, strict=False):
        body.segments.add(role=pb.ASSISTANT, packed_ids=pack_ids([*TOKENIZER.encode(guess), TOKENIZER.eos_id]))
        body.segments.add(role=pb.USER, packed_ids=pack_ids(TOKENIZER.encode(answer)))
    body.segments.add(role=pb.ASSISTANT, packed_ids=pack_ids([*TOKENIZER.encode("2"), TOKENIZER.eos_id]))
    prompt = TOKENIZER.encode("guess 1-7:")
    with closing(sqlite3.connect(folder / "store.sqlite")) as database, database:
        database.execute("CREATE TABLE meta (key, value)")
        database.execute("CREATE TABLE groups (group_id, problem, prompt_token_ids, agents)")
        database.execute("CREATE TABLE attempts (lease_id, sample_index, group_id)")
        database.execute("CREATE TABLE rollouts (rollout_id, lease_id, sample_index, body)")
        database.execute("CREATE TABLE steps (step, figures)")
        database.execute("INSERT INTO meta VALUES ('tokenizer', ?)", (TOKENIZER.to_json(),))
        packed = struct.pack(f"<{len(prompt)}I", *prompt)
        database.execute("INSERT INTO groups VALUES (1, ?, ?, 1)", (json.dumps(problem), packed))
        database.execute("INSERT INTO attempts VALUES (1, 0, 1)")
        database.execute("INSERT INTO rollouts VALUES (1, 1, 0, ?)", (body.SerializeToString(),))
        database.executemany(
            "INSERT INTO steps VALUES (?, ?)", [(n, json.dumps({"reward_mean": n / 2})) for n in (1, 2)]
        )


def test_rewards_are_read_in_the_order_of_steps(tmp_path: Path) -> None:
    ledger(tmp_path)
    assert batch_rewards(tmp_path) == [0.5, 1.0]
    assert mean([0.5, 1.0]) == 0.75


def test_episodes_as_they_were_played_have_no_changed_token(tmp_path: Path) -> None:
    ledger(tmp_path, "<", "<")
    assert retokenised_in_run(tmp_path, CoordinatorConfig(task=TASK)) == 0


def test_a_changed_token_of_an_episode_is_found(tmp_path: Path) -> None:
    ledger(tmp_path, ">", "<?")
    assert retokenised_in_run(tmp_path, CoordinatorConfig(task=TASK)) == 2


def test_changes_between_turns_are_counted() -> None:
    assert changed_tokens([(1, 2), (1, 2, 3), (1, 2, 3, 4)]) == 0
    assert changed_tokens([(1, 2), (1, 5, 3), (1,)]) == 3
    assert retokenised_by_templates() == 0
