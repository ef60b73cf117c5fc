"""Read a pipe only while a task asks for more: what comes meanwhile stays in the kernel, and costs no turn of the loop.

asyncio's own stream reads as soon as there is a byte. Of a child that writes one line after the other, each line then
takes three turns of the loop: to read it, to pass it on, and to wake the task that waits.
"""

from __future__ import annotations

import asyncio
import os


class PipeReader:
    """The reading end of a pipe, for one task at a time; its owner must ``close`` it, while no task reads.

    Args:
        descriptor: of the pipe, which the reader owns.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor

    async def read(self, most: int, gather_s: float = 0.0) -> bytes:
        """Return what is in the pipe, at most ``most`` bytes, once there is anything; empty at its end.

        Args:
            gather_s: seconds to wait for more after the first byte has come, if it has not come already.
        """
        try:
            return os.read(self._descriptor, most)
        except BlockingIOError:
            await self._readable()
        if gather_s:
            await asyncio.sleep(gather_s)
        return os.read(self._descriptor, most)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._descriptor, _set, readable)
        try:
            await readable
        finally:
            loop.remove_reader(self._descriptor)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._descriptor)


def _set(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)
