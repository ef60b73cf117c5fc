"""Run both ends of real chunk links, one of them with a cap, and compare the kernel's byte counts with the cap."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from peer.config import LinkConfig
from peer.links.direct import DirectTransport
from peer.links.stream_link import StreamLink
from peer.links.traffic import LinkTraffic
from peer.links.transport import Link, LinkReceiver
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import Caller, RunCA, TlsCredentials, new_tls_key
from rollcast.wire.ids import PeerId, RunId, StripeId
from rollcast.wire.links.frames import LinkFrame

_RUN_ID = RunId("caps")
_LINKS = 2
_CHUNK = bytes(64 << 10)
_STRIPE = StripeId(0)
_DIAL_DEADLINE_S = 10.0
_BYTES_PER_MEGABIT = 125_000.0
_TCP_INFO_BYTES = 136
_BYTES_RECEIVED_AT = 128  # offset of tcpi_bytes_received in struct tcp_info, linux/tcp.h


@dataclass(frozen=True, slots=True)
class Capped:
    """A cap: its direction, and its rate in Mbit/s."""

    way: Literal["upload", "download"]
    mbit_s: float

    def config(self) -> LinkConfig:
        return LinkConfig.model_validate({f"{self.way}_mbit_s_max": self.mbit_s})


class Pusher:
    """A link receiver that sends another chunk whenever one has left (peer.links.transport.LinkReceiver)."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._index = 0

    def push(self) -> None:
        """Send a chunk."""
        self._index += 1
        self._link.send_chunk(1, 0, self._index % 1000, _CHUNK, _STRIPE)

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        """Do nothing: the other end sends no frames."""

    def drained(self) -> None:
        """Send the next chunk."""
        self.push()

    def closed(self, reason: str, code: str) -> None:
        """Do nothing: the measurement is over."""


class Taker:
    """A link receiver that accepts every chunk and sends nothing."""

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        """Do nothing: the kernel counts the bytes."""

    def drained(self) -> None:
        """Do nothing: there is nothing to send."""

    def closed(self, reason: str, code: str) -> None:
        """Do nothing: the measurement is over."""


async def errors(cases: Sequence[Capped], seconds: float) -> dict[str, float]:
    """Measure all cases concurrently; returns the largest deviation from the caps each way, and the rates in Mbit/s."""
    with tempfile.TemporaryDirectory(prefix="rollcast-caps-") as folder:
        ca = RunCA.create(Path(folder) / "secrets", _RUN_ID)
        rates = await asyncio.gather(*(_rate(case, ca, seconds) for case in cases))
    figures = {f"{case.way}_{case.mbit_s:g}_mbit_s": rate for case, rate in zip(cases, rates, strict=True)}
    deviations = [(case, abs(rate / case.mbit_s - 1.0)) for case, rate in zip(cases, rates, strict=True)]
    for key, way in (("error_up", "upload"), ("error_down", "download")):
        figures[key] = max((deviation for case, deviation in deviations if case.way == way), default=0.0)
    return figures


async def _rate(case: Capped, ca: RunCA, seconds: float) -> float:
    """Return the rate in Mbit/s at which bytes reached the receiving sockets, from their opening on."""
    configs = (case.config(), LinkConfig()) if case.way == "upload" else (LinkConfig(), case.config())
    far = [LinkTraffic(config, is_lan=lambda _address: False) for config in configs]
    (_, sends), (name, takes) = _member(ca), _member(ca)
    sender = DirectTransport(configs[0], sends, _RUN_ID, _anyone, traffic=far[0])
    receiver = DirectTransport(configs[1], takes, _RUN_ID, _anyone, traffic=far[1])
    accepted: asyncio.Queue[Link] = asyncio.Queue()

    def on_link(link: Link) -> LinkReceiver:
        accepted.put_nowait(link)
        return Taker()

    address = await receiver.start(on_link)
    try:
        async with deadline(_DIAL_DEADLINE_S, "links to open"):
            links = [await sender.dial(name, address) for _ in range(_LINKS)]
            ends = [_socket_of(await accepted.get()) for _ in range(_LINKS)]
        loop = asyncio.get_running_loop()
        before, began_s = sum(map(_received_bytes, ends)), loop.time()
        for link in links:
            pusher = Pusher(link)
            link.start(pusher)
            pusher.push()
        await asyncio.sleep(seconds)
        moved = sum(map(_received_bytes, ends)) - before
        return moved / (loop.time() - began_s) / _BYTES_PER_MEGABIT
    finally:
        with contextlib.suppress(OSError):
            await sender.close()
            await receiver.close()


def _member(ca: RunCA) -> tuple[PeerId, TlsCredentials]:
    identity, key = Identity.generate(), new_tls_key()
    pem = ca.issue(key.csr_pem(), peer_id=identity.peer_id, role="peer", lifetime_s=86_400.0)
    return identity.peer_id, TlsCredentials(ca.certificate_pem, pem, key.private_pem)


def _anyone(_caller: Caller) -> str:
    return ""


def _socket_of(link: Link) -> socket.socket:
    assert isinstance(link, StreamLink)
    return cast(socket.socket, cast(Any, link._stream)._sock)


def _received_bytes(end: socket.socket) -> int:
    info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return int(struct.unpack_from("=Q", info, _BYTES_RECEIVED_AT)[0])
