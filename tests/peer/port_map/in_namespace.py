"""Be a router with PCP, or a machine that asks its router for a pinhole, in the network namespace of this process."""

from __future__ import annotations

import asyncio
import sys

from peer.port_map.router_socket import PORT
from peer.port_map.routers import PcpRouter
from tests.peer.port_map import routers

NONCE = bytes(range(12))


async def be_router() -> None:
    async with routers.PcpRouter().open("fe80::1%eth0", PORT) as router:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(sorted(router.opened), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(sorted(router.opened), flush=True)


async def be_machine() -> None:
    router = PcpRouter(NONCE)
    await asyncio.to_thread(sys.stdin.readline)  # until the router answers
    print((await router.map_ports([(7420, 7420)], 3600)).ports, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await router.unmap([(7420, 7420)])


if __name__ == "__main__":
    asyncio.run(be_router() if sys.argv[1] == "router" else be_machine())
