"""Kill gateways and the core behind them again and again under load; count what was acknowledged and is lost.

One real coordinator process, real gateways on its Unix socket, and peers over mutual TLS whose control addresses are
the gateways'. Each round kills a gateway, whose peers must go on at another one, or the coordinator, whose peers must
keep their sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from bench.durability.crash import START_TIMEOUT_S, Members, first_accept, members_of, restart, right_answer
from bench.fleet.history import History, check
from bench.fleet.process import CoordinatorProcess, GatewayProcess, RunShape, in_turn, wait_until_listening
from bench.machine import Outcome
from rollcast.runtime.errors import ProcessFailed
from rollcast.runtime.logs import configure_logging
from rollcast.wire.identity.identity import Identity

BACK_TIMEOUT_S = 60.0
HEARTBEAT_TIMEOUT_S = 60.0  # so that a busy machine alone ends no session
LOAD_S_MAX = 1.0  # most seconds of load between two kills
POLL_S = 0.02


@dataclass(slots=True)
class Rounds:
    """What each kill cost."""

    core_ack_s: list[float] = field(default_factory=list)  # from the start of a new core to an acknowledgement
    gateway_ack_s: list[float] = field(default_factory=list)  # from a gateway's kill until all of its peers were back
    sessions_reopened: int = 0  # by peers whose gateway lived, while the core was killed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=6, help="kills, by turns of the core and of a gateway")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="rollcast-") as folder:  # short: the path of a socket has a limit
        figures = asyncio.run(_gateways(Path(folder), arguments))
    names = ("rounds", "gateways", "peers", "seed")
    return Outcome({name: getattr(arguments, name) for name in names}, figures)


async def _gateways(root: Path, arguments: argparse.Namespace) -> dict[str, float]:
    configure_logging("gateways", log_file=root / "members.log")
    learner, rng, rounds = Identity.generate(), random.Random(arguments.seed), Rounds()
    coordinator = CoordinatorProcess(root, learner, RunShape(gateways=True, heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S))
    gateways = [GatewayProcess(root, number, coordinator) for number in range(arguments.gateways)]
    addresses = partial(in_turn, gateways)
    history = History(root / "history.jsonl")
    async with AsyncExitStack() as stack:
        processes: list[CoordinatorProcess | GatewayProcess] = [coordinator, *gateways]
        for process in processes:
            stack.callback(process.kill)
            process.start()
        for gateway in gateways:
            await asyncio.to_thread(wait_until_listening, gateway, START_TIMEOUT_S)
        members = await stack.enter_async_context(
            members_of(root, coordinator, learner, history, arguments.peers, rng, right_answer, addresses)
        )
        await first_accept(coordinator, history, members, before=0)
        await _until(members, lambda: all(peer.sessions for peer in members.peers), "all peers have a session")
        for number in range(arguments.rounds):
            await asyncio.sleep(rng.uniform(0.0, LOAD_S_MAX))
            if number % 2:
                await _kill_gateway(rng.choice(gateways), members, rounds)
            else:
                await _kill_core(coordinator, history, members, rounds)
        for gateway in gateways:
            gateway.listening()  # raises the process's error if it has ended
    verdict = check(history, coordinator.folder.ledger)
    return {
        "rounds": arguments.rounds,
        "acked": verdict.acked,
        "acked_lost": verdict.acked_lost,
        "trained_twice": verdict.trained_twice,
        "batches": verdict.batches,
        "batches_changed": verdict.batches_changed,
        "unaccounted": verdict.unaccounted,
        "sessions_reopened": rounds.sessions_reopened,
        "core_to_ack_s_median": median(rounds.core_ack_s or [0.0]),
        "core_to_ack_s_max": max(rounds.core_ack_s, default=0.0),
        "gateway_to_ack_s_max": max(rounds.gateway_ack_s, default=0.0),
    }


async def _kill_core(coordinator: CoordinatorProcess, history: History, members: Members, rounds: Rounds) -> None:
    """Kill the core, start it again, and wait until a rollout of every peer was accepted."""
    before, sessions = await restart(coordinator, history), sum(peer.sessions for peer in members.peers)
    rounds.core_ack_s.append(await first_accept(coordinator, history, members, before=before))
    await _every_peer_is_served(members)
    rounds.sessions_reopened += sum(peer.sessions for peer in members.peers) - sessions


async def _kill_gateway(gateway: GatewayProcess, members: Members, rounds: Rounds) -> None:
    """Kill a gateway, wait until a rollout of every peer was accepted without it, and start it again."""
    killed_s = time.monotonic()
    await asyncio.to_thread(gateway.kill)
    await _every_peer_is_served(members)
    rounds.gateway_ack_s.append(time.monotonic() - killed_s)
    gateway.start()


async def _every_peer_is_served(members: Members) -> None:
    before = [peer.accepted for peer in members.peers]

    def served() -> bool:
        return all(peer.accepted > count for peer, count in zip(members.peers, before, strict=True))

    await _until(members, served, "every peer was served again")


async def _until(members: Members, done: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + BACK_TIMEOUT_S
    while not done():
        members.check()
        if time.monotonic() > end_s:
            raise ProcessFailed(f"waited {BACK_TIMEOUT_S:g} s until {what}, in vain")
        await asyncio.sleep(POLL_S)
