"""Make a small run for the views' tests: an origin and named peers that hold version 0, at the time 100."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.core.core import CoordinatorCore
from coordinator.core.events.events import LinkFacts, PeerFacts
from coordinator.core.status.status import RunStatus
from rollcast.wire.ids import PeerId
from tests.coordinator.core_world import World, announced, heartbeat, held, joined

NOW = 100.0


def world(*peers: str, **changes: Any) -> World:
    """Return a world in which the origin and these peers have joined, and the peers hold version 0."""
    found = World(**changes)
    found.now = NOW
    found.handle(replace(joined("origin", role="origin"), region="us"))
    for number, name in enumerate(peers):
        found.handle(replace(joined(name), region=("eu", "us")[number % 2], software="rollcast 1.0", public_name="Ada"))
    found.handle(announced(0))
    for name in peers:
        found.handle(held(name, 0))
    return found


def core(*peers: str, **changes: Any) -> CoordinatorCore:
    return world(*peers, **changes).core


def status(found: CoordinatorCore, now: float = NOW) -> RunStatus:
    return found.run_status(now)


def facts(name: str, **changes: Any) -> PeerFacts:
    return heartbeat(name, **changes).facts


def link(peer: str, rate: float = 1e6, **changes: Any) -> LinkFacts:
    values: dict[str, Any] = {
        "transport": "direct",
        "rtt_s": 0.04,
        "bytes_sent": 100,
        "bytes_received": 0,
        "sent_bytes_per_second": rate,
        "congestion_control": "bbr",
    }
    return LinkFacts(peer_id=PeerId(peer), **(values | changes))
