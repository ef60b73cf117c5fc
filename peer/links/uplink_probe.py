"""Measure an uplink by sending padding; the coordinator asks for it if no version has used the uplink lately."""

from __future__ import annotations

import asyncio

import structlog

from peer.links.transport import Link
from rollcast.wire.limits import PADDING_BYTES_MAX, PROBE_BYTES_MAX
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()

_SECONDS_MAX = 5.0
_PAUSE_S = 0.005
# Enough unsent bytes to keep a fast uplink busy between two checks.
_UNSENT_BYTES_MOST = 4 * PADDING_BYTES_MAX


class Prober:
    """Runs one probe at a time."""

    def __init__(self) -> None:
        self._running = False
        self.last_id = 0
        """The id of the last probe that ended; 0 if none did."""

    async def run(self, link: Link, probe: pb.Probe) -> None:
        """Send padding on the link, unless another probe is running."""
        if self._running:
            return
        self._running = True
        try:
            rate = await run_probe(link, bytes_max=probe.bytes_max, seconds_max=probe.seconds_max)
            log.info("uplink probed", bytes_per_second=round(rate))
            self.last_id = probe.probe_id
        finally:
            self._running = False


async def run_probe(link: Link, *, bytes_max: int, seconds_max: float) -> float:
    """Send padding on a link as fast as it takes it; the meters of its traffic see it.

    Args:
        bytes_max: as the coordinator asks; at most limits.PROBE_BYTES_MAX are sent.

    Returns:
        The rate at which bytes left, in bytes per second.
    """
    loop = asyncio.get_running_loop()
    bytes_max, seconds_max = min(bytes_max, PROBE_BYTES_MAX), min(seconds_max, _SECONDS_MAX)
    padding = pb.LinkMessage(padding=pb.Padding(zeros=bytes(PADDING_BYTES_MAX)))
    started_s, sent_bytes, left_bytes = loop.time(), 0, 0
    while sent_bytes < bytes_max and loop.time() - started_s < seconds_max:
        unsent_bytes = link.measure().unsent_bytes
        left_bytes = max(left_bytes, sent_bytes - unsent_bytes)
        if unsent_bytes < _UNSENT_BYTES_MOST:
            link.send(padding)
            sent_bytes += PADDING_BYTES_MAX
            await asyncio.sleep(0)  # a fast uplink takes all of it at once: let other tasks run
        else:
            await asyncio.sleep(_PAUSE_S)
    return left_bytes / max(loop.time() - started_s, _PAUSE_S)
