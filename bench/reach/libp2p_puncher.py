"""Run one end of a hole through two routers that libp2p dials; it obeys the same orders as hole_puncher.py.

usage: libp2p_puncher.py END INSIDE_ADDRESS OBSERVER_ADDRESS     END: 1 or 2

Each try has a host that listens on the port that the observer saw, and dials from it. "through TRY SECONDS" is printed
once there is a connection, noise and yamux included. Both ends dial; where their dials merge into one connection, end 1
answers the handshake and end 2 begins it (libp2p's specification of DCUtR, "Sync"). If a dial of end 1 reaches the
listener of end 2 instead, both ends wait for the other to begin, and the handshake's deadline ends that connection.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from bench.reach.hole_puncher import OBSERVER_PORT
from peer.p2p.libp2p_host import make_host
from peer.p2p.streams.limits import HostLimits
from rollcast.wire.identity.identity import Identity

_LINE_MAX = 64
_LIMITS = HostLimits()
_PAUSE_S = 0.2
_LOOK_EVERY_S = 0.02
_STAYS_S = 2.0  # an end that is connected stays this long for the other end to notice
_ANSWERS = 1


def identity_of(nonce: str, end: int) -> Identity:
    """Return the identity of an end, derived from the nonce so that both ends know it without exchanging it."""
    return Identity(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"{nonce} {end}".encode()).digest()))


@dataclass
class Puncher:
    """The end of a hole that carries out orders, several tries at once."""

    end: int
    inside: str
    observer: str
    _observing: dict[int, trio.SocketStream] = field(default_factory=dict)

    async def obey(self, order: dict[str, Any]) -> None:
        number = int(order["try"])
        if order["do"] == "observe":
            print("observed", number, await self._observed(number), flush=True)
            return
        found_s = await self._punch(number, order)
        print(*(("failed", number) if found_s is None else ("through", number, found_s)), flush=True)

    async def _observed(self, number: int) -> str:
        one = trio.socket.socket()
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            one.setsockopt(socket.SOL_SOCKET, option, 1)
        await one.bind((self.inside, 0))
        await one.connect((self.observer, OBSERVER_PORT))
        self._observing[number] = trio.SocketStream(one)
        line: bytes = await self._observing[number].receive_some(_LINE_MAX)
        return line.decode().strip()

    async def _punch(self, number: int, order: dict[str, Any]) -> float | None:
        """Return the seconds until the ends were connected, or None if that missed the deadline."""
        observing = self._observing.pop(number)
        source = (self.inside, int(observing.socket.getsockname()[1]))
        host = make_host(identity_of(order["nonce"], self.end), _LIMITS)
        other = ID.from_string(identity_of(order["nonce"], 3 - self.end).peer_id)
        remote = Multiaddr(f"/ip4/{order['address']}/tcp/{order['port']}")
        found_s = None
        async with host.run([Multiaddr(f"/ip4/{self.inside}/tcp/{source[1]}")]), trio.open_nursery() as nursery:
            started_s = time.monotonic()
            nursery.start_soon(self._dial, host.get_network(), remote, other, source)
            with trio.move_on_after(float(order["deadline_s"])):
                while not host.get_network().connections.get(other):  # noqa: ASYNC110  an accepted connection counts too, and sets no event
                    await trio.sleep(_LOOK_EVERY_S)
                found_s = time.monotonic() - started_s
            if found_s is not None:
                await trio.sleep(_STAYS_S)
            nursery.cancel_scope.cancel()
        await observing.aclose()
        return found_s

    async def _dial(self, network: Any, remote: Multiaddr, other: ID, source: tuple[str, int]) -> None:
        dial = network.dial_addr_as_responder if self.end == _ANSWERS else network.dial_addr
        while not network.connections.get(other):
            try:
                await dial(remote, other, source)
            except Exception:  # libp2p has no class of its own for a dial that fails
                await trio.sleep(_PAUSE_S)


async def main(end: int, inside: str, observer: str) -> None:
    """Carry out orders until stdin is closed."""
    async with trio.open_nursery() as nursery:
        puncher = Puncher(end, inside, observer)
        print("ready", flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            nursery.start_soon(puncher.obey, json.loads(line))


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), *sys.argv[2:])
