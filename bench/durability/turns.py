"""Kill the coordinator by SIGKILL during episodes of several turns: no acknowledged turn may be lost.

A real coordinator process plays a guessing game in its pool of environments, with peers and a learner in this process.
Afterwards every turn that was acknowledged has to be in the ledger: among the turns of an episode that goes on, or in
the rollout of one that ended. ``kills_within_episodes`` counts the kills at which the ledger held turns of episodes
that went on, which the next coordinator had to resume.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sqlite3
import tempfile
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from bench.durability.crash import EARLY_SHARE, LOAD_S_MAX, first_accept, members_of, restart
from bench.fleet.history import History, RolloutKey, check
from bench.fleet.process import CoordinatorProcess, RunShape
from bench.machine import Outcome
from rollcast.runtime.logs import configure_logging
from rollcast.wire.identity.identity import Identity
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.tokenizer import Tokenizer

PEERS = 4

#: Three turns, none of which ends the episode early: an environment that follows from its seed.
GAME = """
class Count:
    def reset(self, seed):
        self.turn = 0
        return str(seed % 1000)

    def step(self, text):
        self.turn += 1
        return "1234"[self.turn % 4], 0.25, self.turn == 3
"""


@dataclass(slots=True)
class TurnHistory(History):
    """A history that keeps the tokens of every acknowledged turn, with its group and sample."""

    turns: dict[RolloutKey, tuple[int, int, bytes]] = field(default_factory=dict)

    def verdict(self, rollout: pb.Rollout, *, accepted: bool, reason: str) -> None:
        History.verdict(self, rollout, accepted=accepted, reason=reason)
        if accepted:
            tokens = b"".join(segment.packed_ids for segment in rollout.segments)
            key = (rollout.lease_id, rollout.sample_index)
            self.turns[key] = (rollout.group_id, rollout.sample_index, tokens)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> Outcome:
    figures = figures_of(arguments.kills, arguments.seed)
    return Outcome({"kills": arguments.kills, "seed": arguments.seed, "peers": PEERS}, figures)


def figures_of(kills: int, seed: int = 0) -> dict[str, float]:
    """Kill a coordinator so many times while it plays episodes, and return what became of the turns."""
    with tempfile.TemporaryDirectory(prefix="rollcast-turns-") as folder:
        return asyncio.run(_turns(Path(folder), kills, random.Random(seed)))


async def _turns(root: Path, kills: int, rng: random.Random) -> dict[str, float]:
    configure_logging("turns", log_file=root / "members.log")
    game, learner = root / "game.py", Identity.generate()
    game.write_text(GAME)
    # Nothing becomes too old, so no episode is given up, and every turn has to be found again.
    shape = RunShape(groups_per_step=4, samples_per_group=2, staleness_limit=100_000, new_tokens_max=64)
    task = f'kind = "gym"\npath = "{game}:Count"\n'
    coordinator = CoordinatorProcess(root, learner, shape, task)
    history, within = TurnHistory(root / "history.jsonl"), 0
    async with AsyncExitStack() as stack:
        stack.callback(coordinator.kill)
        coordinator.start()
        found = await stack.enter_async_context(
            members_of(root, coordinator, learner, history, PEERS, rng, compose=_counts)
        )
        await first_accept(coordinator, history, found, before=0)
        for _ in range(kills):
            await asyncio.sleep(rng.uniform(0.0, LOAD_S_MAX))
            before = await restart(coordinator, history)
            within += going_on(coordinator.folder.ledger) > 0
            if rng.random() < EARLY_SHARE:
                before = await restart(coordinator, history)
            await first_accept(coordinator, history, found, before=before)
    verdict = check(history, coordinator.folder.ledger)
    return {
        "kills": kills,
        "kills_within_episodes": within,
        "turns_acked": len(history.turns),
        "turns_lost": turns_lost(history, coordinator.folder.ledger),
        "episodes_trained_twice": verdict.trained_twice,
        "batches": verdict.batches,
        "batches_changed": verdict.batches_changed,
        "unaccounted": verdict.unaccounted,
    }


def _counts(tokenizer: Tokenizer, lease: pb.Lease) -> list[int]:
    return [*tokenizer.encode(str(lease.lease_id % 4 + 1)), tokenizer.eos_id]


def going_on(ledger: Path) -> int:
    """Return how many turns of episodes that go on a ledger has, which no process has open for writing."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM turns").fetchone()
    return int(count)


def turns_lost(history: TurnHistory, ledger: Path) -> int:
    """Return how many acknowledged turns are neither stored as such nor in the rollout of their slot."""
    kept: dict[tuple[int, int], list[bytes]] = {}
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        for group, index, body in connection.execute(
            "SELECT group_id, sample_index, body FROM rollouts JOIN attempts USING (lease_id, sample_index)"
            " UNION ALL SELECT group_id, sample_index, body FROM turns"
        ):
            generated = [one for one in pb.Rollout.FromString(body).segments if one.role == pb.ASSISTANT]
            kept.setdefault((group, index), []).extend(one.packed_ids for one in generated)
    lost = 0
    for key in sorted(history.turns):  # a lease's number rises from turn to turn
        group, index, tokens = history.turns[key]
        stored = kept.get((group, index), [])
        if tokens in stored:
            stored.remove(tokens)
        else:
            lost += 1
    return lost
