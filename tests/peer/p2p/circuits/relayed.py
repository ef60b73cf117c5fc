"""Run two ends that reach each other only through a relay, on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from peer.links.traffic import LinkTraffic
from peer.links.transport import Admission, LinkLimits
from peer.p2p.circuits.book import CircuitCaps
from peer.p2p.streams.limits import HostLimits
from peer.p2p.transport import P2pTransport
from tests.peer.links.link_run import LinkRun
from tests.peer.links.transport_conformance import LIMITS, WAIT_S, Pair, anyone

CAPS = CircuitCaps(bytes_per_second=1e9)


class RelayedPair(Pair):
    """Two ends and a relay. ``address`` is the listener's at the relay, without its id: ``dial`` appends one."""

    relay: Any
    relay_address: str


@asynccontextmanager
async def relayed_pair(
    folder: Path,
    *,
    admit: Admission = anyone,
    dialler_run: LinkRun | None = None,
    limits: LinkLimits = LIMITS,
    host_limits: HostLimits | None = None,
    caps: CircuitCaps | None = CAPS,
    traffic: LinkTraffic | None = None,
) -> AsyncIterator[RelayedPair]:
    run, other = LinkRun(folder), dialler_run
    other = other or run
    # Two handshakes more than a direct link has, on a machine that may be busy; nothing waits for these to run out.
    limits = replace(limits, dial_timeout_s=WAIT_S)

    def transport(of: LinkRun, peer_id: Any, credentials: Any, **more: Any) -> P2pTransport:
        return P2pTransport(
            of.identities[peer_id], credentials, of.run_id, limits=limits, host_limits=host_limits, **more
        )

    (relay_id, relay_shown), (peer_id, shown) = run.member("peer"), run.member("peer")
    dialler_id, dialler_shown = other.member("peer")
    relay = transport(run, relay_id, relay_shown, admit=anyone, caps=caps, traffic=traffic)
    listener = transport(run, peer_id, shown, admit=admit)
    pair = RelayedPair(run, listener, transport(other, dialler_id, dialler_shown, admit=anyone), peer_id, dialler_id)
    pair.relay, relays = relay, asyncio.Queue[tuple[str, ...]]()
    try:
        async with asyncio.timeout(2 * WAIT_S):
            pair.relay_address = f"{await relay.start(pair.accept)}/p2p/{relay_id}"
            listener.on_circuits = relays.put_nowait
            await listener.start(pair.accept)
            listener.want_relays([pair.relay_address])
            if caps is not None:
                (address,) = await relays.get()
                assert address == f"{pair.relay_address}/p2p-circuit/p2p/{peer_id}"
            pair.address = f"{pair.relay_address}/p2p-circuit"
            yield pair
    finally:
        await asyncio.gather(pair.dialler.close(), listener.close(), relay.close())
