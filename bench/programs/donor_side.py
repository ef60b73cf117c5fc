"""Run only the owner's side of a peer (limits, sensors, commands and page), without a session and without work.

usage: python -m bench.programs.donor_side STATE_FOLDER

The program runs until a signal stops it.
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
from peer.worker.core.events import FinishRequested, Rest
from rollcast.runtime.process import die_with_parent, run_process
from rollcast.wire.proto import rollcast_pb2 as pb


class IdleHost:
    """A host without work and links; see peer.donor.daemon.DonorHost."""

    moved_far_bytes = (0, 0)
    holds_work = False

    def rest(self, event: Rest) -> None:
        """Do nothing: there is no generation to pause."""

    def finish(self, event: FinishRequested) -> None:
        """Do nothing: there is no lease to finish."""

    def allow_network(self, gate: NetworkGate) -> None:
        """Do nothing: there are no links to gate."""

    def cap_links(self, link: LinkConfig) -> None:
        """Do nothing: there are no links to cap."""

    def describe(self) -> dict[str, Any]:
        """Return the description of a peer that waits for its coordinator."""
        hello = pb.Hello(name="attic", software="rollcast", hardware="no engine")
        beat = pb.Heartbeat(state="idle", reason="waiting for the coordinator")
        search, reach = Coordinators(["-"]), ReachabilitySummary().describe(pb.Reachability(), "")
        ids: dict[str, Any] = {"run_id": "run", "peer_id": "peer"}
        return describe(hello, beat, **ids, search=search, reach=reach, connected=False, now=0.0, uptime_s=0.0)


async def serve(config: PeerConfig, stop: asyncio.Event) -> int:
    """Run the owner's daemon until ``stop`` is set; returns exit status 0."""
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
