"""Run one of the three processes of a relayed link for bench.reach.relayed; each prints lines of JSON.

usage: python -m bench.reach.relayed_end relay|answer|ask FOLDER HOST [RELAY TRIES MIB]

``FOLDER`` holds a folder for each process, with identity and certificate. The relay prints its address. The answering
end prints its address at the relay once it holds a reservation there. The asking end prints the seconds of each dial,
then what sending costs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from bench.broadcast.transports_end import CHUNK_BYTES, Sender, Taker
from peer.links.transport import Link, LinkReceiver
from peer.p2p.circuits.book import CircuitCaps
from peer.p2p.transport import P2pTransport
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials

_WAIT_S = 300.0
_CAPS = CircuitCaps(bytes_per_second=1e9)  # so high that the network's rate is the limit


def _report(**figures: object) -> None:
    print(json.dumps(figures), flush=True)


def _transport(folder: Path, who: str, host: str) -> P2pTransport:
    credentials, identity = TlsCredentials.load(folder / who), Identity.load(folder / who / "identity.pem")
    run_id = credentials.caller.run_id
    caps = _CAPS if who == "relay" else None
    return P2pTransport(identity, credentials, run_id, lambda _caller: "", host=host, caps=caps)


def _refuse_links(_link: Link) -> LinkReceiver:
    raise NotImplementedError


async def _relay(folder: Path, host: str) -> None:
    transport = _transport(folder, "relay", host)
    address = await transport.start(_refuse_links)
    peer_id = Identity.load(folder / "relay" / "identity.pem").peer_id
    _report(address=f"{address}/p2p/{peer_id}")
    await asyncio.to_thread(sys.stdin.read)
    _report(cpu_s=time.process_time())
    await transport.close()


async def _answer(folder: Path, host: str, relay: str, mib: int) -> None:
    def accept(link: Link) -> LinkReceiver:
        return Taker(link, (mib << 20) // CHUNK_BYTES)

    transport = _transport(folder, "answer", host)
    circuits: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
    transport.on_circuits = circuits.put_nowait
    await transport.start(accept)
    transport.want_relays([relay])
    (address,) = await circuits.get()
    _report(address=address)
    await asyncio.to_thread(sys.stdin.read)
    _report(cpu_s=time.process_time())
    await transport.close()


async def _dial(folder: Path, host: str, circuit: str, tries: int, mib: int) -> None:
    peer_id = Identity.load(folder / "answer" / "identity.pem").peer_id
    for left in range(tries - 1, -1, -1):
        transport = _transport(folder, "ask", host)  # a new host, which has no connection to the relay yet
        await transport.start(_refuse_links)
        began_s = time.monotonic()
        link = await transport.dial(peer_id, circuit)
        _report(dialled_s=time.monotonic() - began_s, transport=link.transport)
        if not left:
            sender = Sender(link, (mib << 20) // CHUNK_BYTES)
            link.start(sender)
            began_s, began_cpu_s = time.monotonic(), time.process_time()
            sender.begin()
            await sender.done.wait()
            _report(seconds=time.monotonic() - began_s, cpu_s=time.process_time() - began_cpu_s)
        await transport.close()


async def _main(who: str, folder: Path, host: str, relay: str = "", tries: str = "0", mib: str = "0") -> None:
    async with asyncio.timeout(_WAIT_S):
        match who:
            case "relay":
                await _relay(folder, host)
            case "answer":
                await _answer(folder, host, relay, int(mib))
            case _:
                await _dial(folder, host, relay, int(tries), int(mib))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
