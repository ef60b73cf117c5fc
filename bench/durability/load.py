"""Load a coordinator with thousands of peers: measure acknowledgement times, resources and losses.

One real coordinator process with mutual TLS and a SQLite ledger runs on one core; the peers, the learner and the
verifiers run on the others, and gateways, if there are any, on all of them. Peers send heartbeats and upload rollouts
of 20 KB at given rates, regardless of the coordinator. With ``--kill`` the coordinator is killed by SIGKILL in the
middle and started again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from bench.durability.linked import LinkedFleet
from bench.fleet.fleet import Fleet, FleetPeer, FleetShape
from bench.fleet.history import History, check
from bench.fleet.joining import join_many
from bench.fleet.learner import SyntheticLearner
from bench.fleet.long_rollouts import LongRollouts, tokens_for
from bench.fleet.process import CoordinatorProcess, GatewayProcess, RunShape, wait_until_listening
from bench.fleet.watch import Watch, pin
from bench.machine import Outcome, alone
from rollcast.runtime.errors import ProcessFailed
from rollcast.runtime.logs import configure_logging
from rollcast.runtime.process import collect_garbage_in_small_steps
from rollcast.wire.identity.identity import Identity
from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.text.tokenizer import Tokenizer

START_TIMEOUT_S = 120.0
CONNECT_TIMEOUT_S = 300.0
BACK_TIMEOUT_S = 120.0
VERDICTS_TIMEOUT_S = 60.0
SCRAPE_EVERY_S = 15.0  # as Prometheus would
BLOCK_FIGURES = {
    "loop_block_ms_max": "rollcast_loop_block_max_seconds",
    "loop_work_ms_max": "rollcast_loop_work_max_seconds",
}
POLL_S = 0.05
SERVED_POLL_S = 0.2  # between two requests of the metrics, which cost the coordinator time
WARM_UP_S = SCRAPE_EVERY_S  # the first scrape looks back as long before it: not to peers that connect and get work
FILES_A_PEER, FILES_BESIDE = 4, 1_000  # open files; a reconnection overlaps with the connection that it replaces
STEP_S = 12.0  # a learner step trains the uploads of this many seconds
SAMPLES_PER_GROUP = 16
STALENESS_LIMIT = 8
LEASE_DEADLINE_S = 300.0
HEARTBEATS_MISSED = 5.0  # after which a peer counts as lost


@dataclass(frozen=True, slots=True)
class Profile:
    """The load on the coordinator."""

    peers: int
    heartbeats_s: float
    uploads_s: float
    seconds: float
    kill: bool = False
    upload_bytes: int = 20_000
    gateways: int = 0
    linked: bool = False


PROFILES = {
    "gate": Profile(peers=2_000, heartbeats_s=200.0, uploads_s=300.0, seconds=60.0),
    "goal": Profile(peers=10_000, heartbeats_s=1_000.0, uploads_s=1_000.0, seconds=600.0, kill=True),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", choices=sorted(PROFILES), default="gate")
    parser.add_argument("--peers", type=int, help="number of peers, in place of the profile's")
    parser.add_argument("--heartbeats", type=float, help="a second in total, in place of the profile's")
    parser.add_argument("--uploads", type=float, help="a second in total, in place of the profile's")
    parser.add_argument("--seconds", type=float, help="seconds to measure, in place of the profile's")
    parser.add_argument("--kill", action=argparse.BooleanOptionalAction, help="in place of the profile's")
    parser.add_argument("--gateways", type=int, help="processes that serve the peers; they run on all cores")
    parser.add_argument(
        "--linked",
        action="store_true",
        help="speak for all peers as one gateway does, without TLS",
    )
    parser.add_argument("--seed", type=int, default=0)


def profile_of(arguments: argparse.Namespace) -> Profile:
    """Return the named profile, with its values replaced by the given options."""
    profile = PROFILES[arguments.profile]
    given = {
        "peers": arguments.peers,
        "heartbeats_s": arguments.heartbeats,
        "uploads_s": arguments.uploads,
        "seconds": arguments.seconds,
        "kill": arguments.kill,
        "gateways": arguments.gateways,
        "linked": arguments.linked,
    }
    return replace(profile, **{name: value for name, value in given.items() if value is not None})


def run(arguments: argparse.Namespace) -> Outcome:
    """Measure one profile.

    Raises:
        ProcessFailed: the coordinator ended, or peers do not get in.
    """
    profile = profile_of(arguments)
    with alone():
        figures = measure(profile, random.Random(arguments.seed))
    missing = tuple(name for name in BLOCK_FIGURES if name not in figures)
    if missing:
        print(
            f"{', '.join(missing)}: null, as the coordinator's metrics look back up to {2 * SCRAPE_EVERY_S:g} s, and in"
            f" {profile.seconds:g} s shows what happened before; measure for {SCRAPE_EVERY_S:g} s or more",
            file=sys.stderr,
        )
    settings = {"profile": arguments.profile, "peers": profile.peers, "seconds": profile.seconds}
    settings |= {"heartbeats_s": profile.heartbeats_s, "uploads_s": profile.uploads_s, "kill": profile.kill}
    settings |= {"gateways": profile.gateways, "linked": profile.linked}
    return Outcome(settings, figures, missing)


def measure(profile: Profile, rng: random.Random) -> dict[str, float]:
    """Return the figures of one profile; the coordinator has one core, everything else the others.

    Raises:
        ProcessFailed: the coordinator ended, or peers do not get in.
    """
    cores = os.sched_getaffinity(0)
    own = {min(cores)}
    others = cores - own or cores
    _allow_connections(FILES_A_PEER * profile.peers + FILES_BESIDE)
    os.sched_setaffinity(0, others)
    try:
        with tempfile.TemporaryDirectory(prefix="rollcast-load-") as folder:
            return asyncio.run(Load(Path(folder), profile, rng, own, others).run())
    finally:
        os.sched_setaffinity(0, cores)


class Load:
    """One coordinator, its members, and the clock."""

    def __init__(self, root: Path, profile: Profile, rng: random.Random, own: set[int], others: set[int]) -> None:
        self._root = root
        self._profile = profile
        self._rng = rng
        self._learner_identity = Identity.generate()
        heartbeat_s = profile.peers / profile.heartbeats_s
        self._coordinator = CoordinatorProcess(
            root,
            self._learner_identity,
            RunShape(
                groups_per_step=max(1, round(STEP_S * profile.uploads_s / SAMPLES_PER_GROUP)),
                samples_per_group=SAMPLES_PER_GROUP,
                staleness_limit=STALENESS_LIMIT,
                new_tokens_max=tokens_for(profile.upload_bytes),
                peers_max=profile.peers,
                lease_deadline_s=LEASE_DEADLINE_S,
                heartbeat_interval_s=heartbeat_s,
                heartbeat_timeout_s=HEARTBEATS_MISSED * heartbeat_s,
                gateways=profile.gateways > 0 or profile.linked,
            ),
        )
        self._gateways = [GatewayProcess(root, number, self._coordinator) for number in range(profile.gateways)]
        self._keeps_sessions = profile.gateways > 0 or profile.linked  # while the coordinator is killed
        self._watch = Watch(self._coordinator, own, others)
        self._all = own | others
        self._history = History()
        self._scrapes_s: list[float] = []
        self._blocks_ms = dict.fromkeys(BLOCK_FIGURES, 0.0)  # the longest of the coordinator's loop in any scrape
        self._figures: dict[str, float] = {}
        self._gateways_cpu_s = 0.0  # of all gateways while it was measured
        self._seconds = 0.0  # measured so far

    async def run(self) -> dict[str, float]:
        """Run the load, and return its figures."""
        configure_logging("load", log_file=self._root / "members.log")
        collect_garbage_in_small_steps()  # a scan of 10,000 peers stops the fleet for a second, and delays its uploads
        async with AsyncExitStack() as stack:
            stack.callback(self._coordinator.kill)
            self._coordinator.start()
            await asyncio.to_thread(wait_until_listening, self._coordinator, START_TIMEOUT_S)
            for gateway in self._gateways:
                stack.callback(gateway.kill)
                gateway.start()
                await asyncio.to_thread(wait_until_listening, gateway, START_TIMEOUT_S)
                pin(gateway.pid, self._all)
            await stack.enter_async_context(_running(self._watch.live()))
            fleet, learner = await self._members()
            await stack.enter_async_context(_running(learner.live()))
            await stack.enter_async_context(_running(fleet.live()))
            await self._until_connected(fleet)
            await self._measure(fleet)
            await self._last_verdicts(fleet)
            self._figures["learner_steps"] = learner.step
        self._figures |= self._verdict()
        return self._figures

    async def _members(self) -> tuple[Fleet, SyntheticLearner]:
        (origin,) = await join_many(self._coordinator.invite("origin"), 1)
        enrolments = self._strangers(origin) if self._profile.linked else await self._joined()
        (learns,) = await join_many(self._coordinator.invite("learner"), 1, self._learner_identity)
        learner = SyntheticLearner(
            learns, self._learner_identity, self._history, random.Random(self._rng.random()), old_batch_share=0.0
        )
        peers = [FleetPeer(origin, "origin", 0, self._rng)]
        for number, one in enumerate(enrolments, start=1):
            served = self._gateways[number % len(self._gateways)].address if self._gateways else one.grpc_address
            peers.append(FleetPeer(replace(one, grpc_address=served), "peer", number, self._rng))
        shape = FleetShape(self._profile.heartbeats_s, self._profile.uploads_s, asks=self._keeps_sessions)
        tokenizer = Tokenizer.from_json((await learner.describe()).tokenizer_json)
        rollouts = LongRollouts(tokenizer, tokens_for(self._profile.upload_bytes))
        if not self._profile.linked:
            return Fleet(peers, shape, rollouts, self._history, self._rng), learner
        fleet = LinkedFleet(peers, shape, rollouts, self._history, self._rng)
        await fleet.link(self._coordinator.gateway_socket)
        return fleet, learner

    async def _joined(self) -> list[Enrolment]:
        began_s = time.monotonic()
        enrolments = await join_many(self._coordinator.invite("peer"), self._profile.peers)
        self._figures["joins_s"] = len(enrolments) / (time.monotonic() - began_s)
        return enrolments

    def _strangers(self, like: Enrolment) -> list[Enrolment]:
        """Return identities that have not joined: a gateway has checked the certificates of those for which it speaks.

        ``like`` has the addresses of the run.
        """
        return [replace(like, peer_id=Identity.generate().peer_id) for _ in range(self._profile.peers)]

    async def _until_connected(self, fleet: Fleet) -> None:
        """Wait until every peer has a session and work."""
        began_s = time.monotonic()
        await self._wait(lambda: fleet.connected == self._profile.peers + 1, CONNECT_TIMEOUT_S, "peers connect")
        self._figures["connect_s"] = time.monotonic() - began_s
        gc.freeze()
        enough = min(self._profile.peers, int(self._profile.uploads_s))
        await self._wait(lambda: fleet.holding >= enough, CONNECT_TIMEOUT_S, "peers get work")
        fleet.uploading = True
        await asyncio.sleep(min(WARM_UP_S, self._profile.seconds))

    async def _measure(self, fleet: Fleet) -> None:
        self._watch.begin()
        gateways_before_s = sum(one.cpu_s() for one in self._gateways)
        async with _running(self._scrape()):
            began_s, fleet.counting = time.monotonic(), True
            if self._profile.kill:
                await asyncio.sleep(self._profile.seconds / 2)
                await self._kill(fleet)
            left_s = self._profile.seconds - (time.monotonic() - began_s)
            await asyncio.sleep(max(0.0, left_s))
            fleet.counting = False
            took_s = time.monotonic() - began_s
            self._watch.sample()
            if self._profile.seconds >= SCRAPE_EVERY_S:
                async with aiohttp.ClientSession(trust_env=False) as session:
                    await self._scrape_once(session)  # what happened since the last regular one
                self._figures |= self._blocks_ms
        self._gateways_cpu_s = sum(one.cpu_s() for one in self._gateways) - gateways_before_s
        self._figures |= {"cores": self._watch.cores, "rss_mb": self._watch.rss_mb, "connected": fleet.connected - 1}
        self._figures["gateways_rss_mb"] = sum(one.rss_mb() for one in self._gateways)
        self._figures["heartbeats_s"] = fleet.answers.heartbeats / took_s
        self._seconds = took_s

    async def _kill(self, fleet: Fleet) -> None:
        """Kill and restart the coordinator, and wait until all peers are back; uploads due meanwhile do not count."""
        fleet.counting = False
        await asyncio.to_thread(self._coordinator.kill)
        killed_s = time.monotonic()
        self._coordinator.start()
        self._watch.sample()  # it starts on its own core, not on that of the fleet
        if self._keeps_sessions:  # what comes before the core listens was under way
            await asyncio.to_thread(wait_until_listening, self._coordinator, BACK_TIMEOUT_S)
        else:
            await self._wait(lambda: fleet.opened_since(killed_s) > 0, BACK_TIMEOUT_S, "the first peer comes back")
        before = len(self._history.acked)
        await self._wait(lambda: len(self._history.acked) > before, BACK_TIMEOUT_S, "the first acknowledgement")
        self._figures["kill_to_ack_s"] = time.monotonic() - killed_s
        with contextlib.suppress(ProcessFailed):
            everybody = self._profile.peers + 1
            if self._keeps_sessions:
                await self._all_members()
            else:
                await self._wait(lambda: fleet.opened_since(killed_s) == everybody, BACK_TIMEOUT_S, "peers come back")
        self._figures["back_s"] = time.monotonic() - killed_s
        self._figures["sessions_reopened"] = fleet.opened_since(killed_s)
        fleet.counting = True

    async def _all_members(self) -> None:
        """Wait until the coordinator counts every peer as a member.

        Raises:
            ProcessFailed: they do not come back in time.
        """
        url, end_s = f"{self._coordinator.invite('peer').http_url}/metrics", time.monotonic() + BACK_TIMEOUT_S
        async with aiohttp.ClientSession(trust_env=False) as session:
            while time.monotonic() < end_s:
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with session.get(url) as response:
                        text = await response.text()
                    self._blocks_ms = longer(self._blocks_ms, text)
                    if members(text) >= self._profile.peers:
                        return
                await asyncio.sleep(SERVED_POLL_S)
        raise ProcessFailed(f"not all peers came back within {BACK_TIMEOUT_S:g} s")

    async def _last_verdicts(self, fleet: Fleet) -> None:
        fleet.uploading = False
        with contextlib.suppress(ProcessFailed):
            await self._wait(lambda: fleet.under_way == 0, VERDICTS_TIMEOUT_S, "the last verdicts")
        answers = fleet.answers
        self._figures |= {
            "uploads_s": len(answers.latencies_s) / self._seconds,
            # All that the process does, heartbeats and the learner's calls included.
            "core_ms_per_upload": 1e3 * self._figures["cores"] * self._seconds / max(1, len(answers.latencies_s)),
            "gateways_ms_per_upload": 1e3 * self._gateways_cpu_s / max(1, len(answers.latencies_s)),
            "p50_ack_ms": quantile_ms(answers.latencies_s, 0.5),
            "p99_ack_ms": quantile_ms(answers.latencies_s, 0.99),
            "p999_ack_ms": quantile_ms(answers.latencies_s, 0.999),
            "max_ack_ms": quantile_ms(answers.latencies_s, 1.0),
            "fleet_late_p99_ms": quantile_ms(answers.sent_late_s, 0.99),
            "scrape_max_ms": quantile_ms(self._scrapes_s, 1.0),
            "uploads_due": answers.due,
            "uploads_starved": answers.starved,
            "uploads_unanswered": fleet.under_way,
        }
        self._figures |= {f"refused_{reason}": count for reason, count in sorted(answers.refused.items())}
        self._figures |= {f"failed_{status}": count for status, count in sorted(answers.failed.items())}

    def _verdict(self) -> dict[str, float]:
        """Return the verdict of an independent check of the ledger."""
        verdict = check(self._history, self._coordinator.folder.ledger)
        return {
            "acked": verdict.acked,
            "lost": verdict.acked_lost,
            "trained_twice": verdict.trained_twice,
            "batches_changed": verdict.batches_changed,
            "unaccounted": verdict.unaccounted,
        }

    async def _scrape(self) -> None:
        """Request the metrics at regular intervals, as Prometheus does."""
        async with aiohttp.ClientSession(trust_env=False) as session:
            while True:
                await asyncio.sleep(SCRAPE_EVERY_S)
                await self._scrape_once(session)

    async def _scrape_once(self, session: aiohttp.ClientSession) -> None:
        began_s = time.monotonic()
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with session.get(f"{self._coordinator.invite('peer').http_url}/metrics") as response:
                text = await response.text()
            self._scrapes_s.append(time.monotonic() - began_s)
            self._blocks_ms = longer(self._blocks_ms, text)

    async def _wait(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        end_s = time.monotonic() + timeout_s
        while not done():
            self._coordinator.listening()  # raises the process's error if it has ended
            if time.monotonic() > end_s:
                raise ProcessFailed(f"waited {timeout_s:g} s until {what}, in vain")
            await asyncio.sleep(POLL_S)


def members(metrics_text: str) -> int:
    """Return how many peers have a session, from the coordinator's metrics."""
    lines = metrics_text.splitlines()
    counts = [line.split()[-1] for line in lines if line.startswith('rollcast_peers{role="peer"')]
    return int(sum(map(float, counts)))


def longer(blocks_ms: Mapping[str, float], metrics_text: str) -> dict[str, float]:
    """Return the figures of BLOCK_FIGURES in ms: those before, or what the coordinator's metrics have if it is more."""
    samples = dict(line.split()[:2] for line in metrics_text.splitlines() if line and not line.startswith("#"))
    shown_ms = {name: 1e3 * float(samples.get(metric, 0.0)) for name, metric in BLOCK_FIGURES.items()}
    return {name: max(before_ms, shown_ms[name]) for name, before_ms in blocks_ms.items()}


def quantile_ms(seconds: Sequence[float], share: float) -> float:
    """Return a quantile by nearest rank, in milliseconds; 0 without values."""
    if not seconds:
        return 0.0
    return 1e3 * sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a task while the body runs, and report an exception that ends it on stderr."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        died = task.done() and not task.cancelled() and task.exception()
        if died:
            print(f"a client of the run ended: {task.exception()!r}", file=sys.stderr)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _allow_connections(files: int) -> None:
    """Raise the limit of open files, also for the coordinator, which inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limits in ((max(soft, files), max(hard, files)), (hard, hard)):  # the first needs privileges
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            return
