"""Which of the coordinator's places can be reached from this machine, and which hop to the others fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rollcast.wire.joining.diagnose import HopFailed, failed_hop
from rollcast.wire.joining.invite import Invite


async def first_reached(invite: Invite, also: Sequence[str] = ()) -> tuple[Invite | None, list[HopFailed]]:
    """The invite with the first place whose two ports take connections (None: there is none), and what is wrong with
    those before it.

    Args:
        also: further places (rollcast.wire.joining.bootstrap).
    """
    failures: list[HopFailed] = []
    for place in invite.places(also):
        http = place.http_url.partition("://")[2]
        failed = await failed_hop(http, None) or await failed_hop(place.grpc_address, None)
        if failed is None:
            return replace(invite, http_url=place.http_url, grpc_address=place.grpc_address), failures
        failures.append(failed)
    return None, failures
