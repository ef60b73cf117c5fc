"""Run only the owner's side of a peer: limits, sensors, commands and page, in a process without session and work.

usage: python -m bench.programs.donor_side STATE_FOLDER

Runs until it is told to stop.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from peer.config import LinkConfig, PeerConfig
from peer.donor.control.limits import OwnerLimitsBook
from peer.donor.daemon import Donor
from peer.donor.describe import describe
from peer.links.gate import NetworkGate
from peer.reachability.summary import ReachabilitySummary
from peer.session.coordinators import Coordinators
from peer.worker.events import FinishRequested, Rest
from rollcast.runtime.process import die_with_parent, run_process
from rollcast.wire.proto import rollcast_pb2 as pb


class IdleHost:
    """See peer.donor.daemon.DonorHost: nothing is done, and nothing is held."""

    moved_far_bytes = (0, 0)
    holds_work = False

    def rest(self, event: Rest) -> None:
        """Nothing is drawn."""

    def finish(self, event: FinishRequested) -> None:
        """Nothing is held."""

    def allow_network(self, gate: NetworkGate) -> None:
        """There are no links."""

    def cap_links(self, link: LinkConfig) -> None:
        """There are no links."""

    def describe(self) -> dict[str, Any]:
        """A process that waits for its coordinator."""
        hello = pb.Hello(name="attic", software="rollcast", hardware="no engine")
        beat = pb.Heartbeat(state="idle", reason="waiting for the coordinator")
        search, reach = Coordinators(["-"]), ReachabilitySummary().describe(pb.Reachability(), "")
        ids = {"run_id": "run", "peer_id": "peer"}
        return describe(hello, beat, **ids, search=search, reach=reach, connected=False, now=0.0, uptime_s=0.0)


async def serve(config: PeerConfig, stop: asyncio.Event) -> int:
    """Until ``stop`` is set."""
    donor = asyncio.create_task(Donor(OwnerLimitsBook(config), IdleHost()).run())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((donor, stopping), return_when=asyncio.FIRST_COMPLETED)
    if donor.done():
        donor.result()
    donor.cancel()
    await asyncio.gather(donor, return_exceptions=True)
    return 0


def main() -> int:
    die_with_parent()
    config = PeerConfig(state_folder=Path(sys.argv[1]))
    return run_process(lambda stop: serve(config, stop))


if __name__ == "__main__":
    sys.exit(main())
