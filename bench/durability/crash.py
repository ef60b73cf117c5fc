"""Kill the coordinator by SIGKILL repeatedly under load: check what it acknowledged, and time its recovery.

A real coordinator process with mutual TLS, a SQLite ledger and a verifier serves peers and a learner in this process,
which record its answers. Some kills come while it is still starting, the others at a random moment after it accepted
its first rollout. ``restart_s`` is the time from the start of the process until a rollout is acknowledged, and
``restart_cpu_s`` the processor time until then, which depends less on other load.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

from bench.fleet.history import History, check
from bench.fleet.learner import SyntheticLearner
from bench.fleet.peer import PeerShape, SyntheticPeer
from bench.fleet.process import CoordinatorProcess, RunShape, answer_to, wait_until_listening
from bench.machine import Outcome
from rollcast.runtime.errors import ProcessFailed
from rollcast.runtime.logs import configure_logging
from rollcast.wire.identity.identity import Identity
from rollcast.wire.joining.enrol import enrol
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.tokenizer import Tokenizer

START_TIMEOUT_S = 120.0
JOIN_TIMEOUT_S = 30.0
POLL_S = 0.005
EARLY_SHARE = 0.15  # share of kills while the coordinator starts
LOAD_S_MAX = 1.0  # longest time under load before a kill

#: Returns the tokens with which a peer answers a lease.
Compose = Callable[[Tokenizer, pb.Lease], list[int]]


@dataclass(slots=True)
class Restarts:
    """The measurements of all restarts."""

    accept_s: list[float] = field(default_factory=list)  # from the process's start to the first acknowledgement
    cpu_s: list[float] = field(default_factory=list)  # processor time of the process until then
    early_kills: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="rollcast-crash-") as folder:
        figures = asyncio.run(_crash(Path(folder), arguments.kills, arguments.peers, random.Random(arguments.seed)))
    return Outcome({"kills": arguments.kills, "peers": arguments.peers, "seed": arguments.seed}, figures)


async def _crash(root: Path, kills: int, peers: int, rng: random.Random) -> dict[str, float]:
    configure_logging("crash", log_file=root / "members.log")
    learner_identity = Identity.generate()
    coordinator = CoordinatorProcess(root, learner_identity, RunShape())
    history = History(root / "history.jsonl")
    async with AsyncExitStack() as stack:
        stack.callback(coordinator.kill)
        coordinator.start()
        members = await stack.enter_async_context(
            members_of(root, coordinator, learner_identity, history, peers, rng, right_answer)
        )
        restarts = await _kill_again_and_again(coordinator, history, members, kills, rng)
    verdict = check(history, coordinator.folder.ledger)
    if not restarts.accept_s:
        raise ProcessFailed("every kill came before the coordinator accepted a rollout", fix="pass a larger --kills")
    return {
        "kills": kills,
        "kills_while_starting": restarts.early_kills,
        "acked": verdict.acked,
        "acked_lost": verdict.acked_lost,
        "trained_twice": verdict.trained_twice,
        "batches": verdict.batches,
        "batches_changed": verdict.batches_changed,
        "unaccounted": verdict.unaccounted,
        "stored_unacknowledged": verdict.accepted_in_ledger - verdict.acked,
        "uploads_refused": history.refused.total(),
        "restart_s_median": median(restarts.accept_s),
        "restart_s_max": max(restarts.accept_s),
        "restart_cpu_s_median": median(restarts.cpu_s),
    }


def right_answer(tokenizer: Tokenizer, lease: pb.Lease) -> list[int]:
    return [*tokenizer.encode(answer_to(tokenizer.decode(lease.prompt_token_ids))), tokenizer.eos_id]


@dataclass(frozen=True, slots=True)
class Members:
    """The coordinator's clients, as tasks."""

    tasks: tuple[asyncio.Task[None], ...]
    peers: tuple[SyntheticPeer, ...] = ()

    def check(self) -> None:
        """Raise the exception that ended a client, if any has ended."""
        for task in self.tasks:
            if task.done():
                task.result()
                raise ProcessFailed("a member of the run ended")


@asynccontextmanager
async def members_of(
    root: Path,
    coordinator: CoordinatorProcess,
    learner: Identity,
    history: History,
    peers: int,
    rng: random.Random,
    compose: Compose,
    addresses: Callable[[int], tuple[str, ...]] | None = None,
) -> AsyncIterator[Members]:
    """Join the learner and the peers, which answer leases with ``compose``, and run them as tasks.

    Args:
        addresses: returns the control addresses that peer number N dials in turn; None: those of its invite.
    """
    await asyncio.to_thread(wait_until_listening, coordinator, START_TIMEOUT_S)
    async with AsyncExitStack() as stack:
        enrolment = await enrol(coordinator.invite("learner"), learner, root / "learner", JOIN_TIMEOUT_S)
        trains = SyntheticLearner(enrolment, learner, history, random.Random(rng.random()))
        tasks = [asyncio.create_task(trains.live())]
        stack.push_async_callback(_end, tasks)
        async with asyncio.timeout(JOIN_TIMEOUT_S):
            info = await trains.info
        tokenizer = Tokenizer.from_json(info.tokenizer_json)
        answer, members = partial(compose, tokenizer), list[SyntheticPeer]()
        for number in range(peers):
            folder = root / f"peer-{number}"
            enrolment = await enrol(coordinator.invite("peer"), Identity.generate(), folder, JOIN_TIMEOUT_S)
            if addresses is not None:
                first, *further = addresses(number)
                enrolment = replace(enrolment, grpc_address=first, further=tuple(further))
            members.append(SyntheticPeer(enrolment, PeerShape(), history, answer, random.Random(rng.random())))
            tasks.append(asyncio.create_task(members[-1].live()))
        yield Members(tuple(tasks), tuple(members))


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _kill_again_and_again(
    coordinator: CoordinatorProcess, history: History, members: Members, kills: int, rng: random.Random
) -> Restarts:
    """Kill the coordinator ``kills`` times, and start it a last time so that the run continues."""
    restarts = Restarts()
    await first_accept(coordinator, history, members, before=0)  # joining takes longer, so this is no restart
    for _ in range(kills):
        await asyncio.sleep(rng.uniform(0.0, LOAD_S_MAX))
        before = await restart(coordinator, history)
        if rng.random() < EARLY_SHARE:
            await asyncio.sleep(rng.uniform(0.0, median(restarts.accept_s or [1.0])))
            restarts.early_kills += 1
            before = await restart(coordinator, history)
        restarts.accept_s.append(await first_accept(coordinator, history, members, before=before))
        restarts.cpu_s.append(coordinator.cpu_s())
    return restarts


async def restart(coordinator: CoordinatorProcess, history: History) -> int:
    """Kill the coordinator, start it again, and return how many rollouts were acknowledged until then."""
    await asyncio.to_thread(coordinator.kill)
    before = len(history.acked)
    coordinator.start()
    return before


async def first_accept(coordinator: CoordinatorProcess, history: History, members: Members, *, before: int) -> float:
    """Return the seconds from the process's start until a rollout was acknowledged."""
    while len(history.acked) <= before:
        members.check()
        now_s = time.monotonic() - coordinator.started_at_s
        if now_s > START_TIMEOUT_S:
            raise ProcessFailed(f"no rollout was acknowledged within {START_TIMEOUT_S:g} s of a start")
        coordinator.listening()  # raises the process's error if it has ended
        await asyncio.sleep(POLL_S)
    return time.monotonic() - coordinator.started_at_s
