"""List the sockets that this process has open."""

from __future__ import annotations

import asyncio

import psutil


def connections_to(address: str) -> int:
    """Established TCP connections of this process to host:port; those that it has accepted there do not count."""
    port = int(address.rpartition(":")[2])
    established = [one for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]
    return sum(bool(one.raddr) and one.raddr.port == port for one in established)


async def until_none(address: str) -> None:
    """Returns once there are none to host:port; raises TimeoutError after 10 s."""
    async with asyncio.timeout(10.0):
        while connections_to(address):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
