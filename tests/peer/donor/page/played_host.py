"""Simulate the process and machine of a peer for its owner's side: busy, warm, with links, and receiving a version."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from peer.config import LinkConfig, PeerConfig
from peer.donor.control.limits import OwnerLimitsBook
from peer.donor.daemon import Donor
from peer.donor.describe import describe
from peer.donor.machine.sensors import Sensors
from peer.limits.readings import Readings
from peer.links.gate import NetworkGate
from peer.reachability.nat_kind import Seen
from peer.reachability.summary import ReachabilitySummary
from peer.session.coordinators import Coordinators
from peer.worker.core.events import FinishRequested, Rest, Verdict
from rollcast.runtime.errors import DaemonAway
from rollcast.wire.donor.control_socket import request
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.peer.worker.core.worker_samples import grant, rollout, segment, work

PEER_ID = "12D3KooWQ7Wk3GJtR5m1bYv8pZnX4cAeF2sLhUd6oTqV9iBwNyKr"
CONFIG: dict[str, Any] = {
    "name": "attic",
    "link": {"upload_mbit_s_max": 20.0, "download_mbit_s_max": 80.0},
    "limits": {
        "compute_hours": ["mon-fri 22:00-07:00", "sat,sun"],
        "upload_gb_month": 200.0,
        "cpu_celsius_max": 85.0,
        "gpu_celsius_max": 78.0,
        "idle_minutes_min": None,
        "polite": False,
    },
}
SATURDAY_NOON = datetime(2026, 11, 28, 12)
"""Within the hours for computing."""
_GIB = 2**30
_CHUNKS = 4096


class PlayedHost:
    """A peer.donor.daemon.DonorHost that records the calls to it."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.verdict: dict[str, Any] | None = None
        self.beats = 0
        self.moved_far_bytes = (143_000_000_000, 61_000_000_000)
        self.holds_work = True
        self._random = random.Random(7)

    def rest(self, event: Rest) -> None:
        self.told.append(event)

    def finish(self, event: FinishRequested) -> None:
        self.told.append(event)

    def allow_network(self, gate: NetworkGate) -> None:
        self.told.append(gate)

    def cap_links(self, link: LinkConfig) -> None:
        self.told.append(link)

    def describe(self) -> dict[str, Any]:
        self.beats += 1
        have = min(_CHUNKS - 1, 1400 + self.beats * 40)
        share = have / _CHUNKS
        cells = [
            min(255, max(0, int(255 * (share * 2 - at / 128) + self._random.randint(-40, 40)))) for at in range(128)
        ]
        links = [
            pb.LinkReport(
                peer_id=f"12D3KooWLink{n}{'x' * 24}{n:04d}",
                transport=("direct", "punched", "direct", "relayed")[n - 1],
                lan=n == 1,
                rtt_s=0.012 * n,
                bytes_sent=n * 900_000_000,
                bytes_received=n * 310_000_000,
            )
            for n in range(1, 5)
        ]
        beat = pb.Heartbeat(
            state="generating",
            reason="64 rollouts with version 1841",
            has_active_version=True,
            active_version=1841,
            tokens_per_second=4180 + 160 * math.sin(self.beats / 3),
            tokens_generated=81_400_000 + self.beats * 4000,
            receiving_version=1842,
            receiving_chunks_have=have,
            receiving_chunks_total=_CHUNKS,
            receiving_map=bytes(cells),
            links=links,
            p2p="running",
            chunk_bytes_sent=self.beats * 2_000_000,
            chunk_bytes_from_peers=self.beats * 5_100_000,
            chunk_bytes_from_origin=40_000_000,
        )
        hello = pb.Hello(
            name="attic",
            software="rollcast 0.1.0",
            hardware="16 cores, jax 0.10.2, 1 x NVIDIA GeForce RTX 4090 (gpu)",
            held_versions=[1840, 1841],
        )
        return describe(
            hello,
            beat,
            run_id="qwen3-4b-math",
            peer_id=PEER_ID,
            search=Coordinators(["run.example.org:7443"]),
            reach=_REACH.describe(_TOLD, ""),
            now=0.0,
            connected=True,
            uptime_s=183_000.0 + self.beats,
            verdict=self.verdict,
        )


_REACH = ReachabilitySummary(Seen("192.168.1.20", "203.0.113.5", 51820, 51820, reached=False))
_TOLD = pb.Reachability(nat="port-restricted", punch_address="203.0.113.5:51820", circuits=["one"])


class Warm:
    """Sensors whose readings vary a little."""

    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> Readings:
        self.looks += 1
        wave = math.sin(self.looks / 5)
        return Readings(
            cpu_celsius=61.0 + 2 * wave,
            gpu_celsius=71.0 + 3 * wave,
            power_watts=286.0 + 8 * wave,
            idle_s=4000.0 + self.looks,
            others_cpu_share=0.07 + 0.02 * wave,
            memory_free_bytes=41 * _GIB,
            memory_used_bytes=11 * _GIB,
            gpu_memory_used_bytes=19 * _GIB,
            disk_free_bytes=412 * _GIB,
        )


@asynccontextmanager
async def played_donor(
    folder: Path, *, begins: datetime = SATURDAY_NOON, deadline_s: float = 240.0, **config: Any
) -> AsyncIterator[tuple[Donor, PlayedHost, str]]:
    """Run the donor's side; yield it, its host and its page's address. Its wall clock starts at ``begins``."""
    settings = PeerConfig.model_validate({**CONFIG, "state_folder": folder, **config})
    host, warm = PlayedHost(), Warm()
    loop = asyncio.get_running_loop()
    begins_s = loop.time()

    def local_now() -> datetime:
        return begins + timedelta(seconds=loop.time() - begins_s)

    with patch.object(Sensors, "read", lambda _: warm.look()):
        donor = Donor(
            OwnerLimitsBook(settings),
            host,
            "5f2a9c0e71b84d6fa3c1e0d92b7458ac",
            local_now=local_now,
            unix_now=lambda: local_now().timestamp(),
        )
        hand_in(donor, 40)
        running = asyncio.create_task(donor.run())
        try:
            async with asyncio.timeout(deadline_s):
                yield donor, host, await _address(folder, running)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        finally:
            running.cancel()


def hand_in(donor: Donor, count: int) -> None:
    """Feed the donor this many verdicts, not all of them accepted."""
    slots = work(*(grant(7000 + number, 8) for number in range(-(-count // 8))))[:count]
    made = [
        rollout(slot, segment(tuple(range(180 + 370 * number % 900)), 1838 + number % 4))
        for number, slot in enumerate(slots)
    ]
    reasons = {5: "stale", 17: "stale", 23: "late_duplicate", 31: "lease_expired"}
    verdicts = [
        Verdict(one.lease_id, one.sample_index, number not in reasons, reasons.get(number, ""))
        for number, one in enumerate(made)
    ]
    donor.judged(made, verdicts)


async def _address(folder: Path, running: asyncio.Task[None]) -> str:
    while not running.done():
        try:
            url = str((await asyncio.to_thread(request, folder, {"do": "page"}))["url"])
            if ":0/" not in url:
                return url
        except DaemonAway:
            pass
        await asyncio.sleep(0.02)
    running.result()
    raise AssertionError("the donor's side ended")
