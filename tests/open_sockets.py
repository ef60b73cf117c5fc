"""List the sockets that this process has open."""

from __future__ import annotations

import asyncio

import psutil


def connections_to(address: str) -> int:
    """Return the number of this process's TCP connections to host:port, without those that it accepted there."""
    port = int(address.rpartition(":")[2])
    established = [one for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]
    return sum(bool(one.raddr) and one.raddr.port == port for one in established)


async def until_none(address: str) -> None:
    """Return once there are no connections to host:port; raises TimeoutError after 10 s."""
    async with asyncio.timeout(10.0):
        while connections_to(address):  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.02)
