"""Requests to the coordinator's plain HTTP side as a member of its run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.member_proof import member_proof
from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.joining.pinned_http import pinned_options


class MemberHttp:
    """See peer.reachability.nat_probe.CoordinatorHttp; it needs no invite, and opens once there is a session.

    Args:
        http_url: of the coordinator at the place where it was found last; None: where we joined.
    """

    def __init__(
        self,
        identity: Identity,
        enrolment: Enrolment,
        wall_clock: Callable[[], float] = time.time,
        http_url: Callable[[], str] | None = None,
    ) -> None:
        self._identity, self._enrolment, self._wall_clock = identity, enrolment, wall_clock
        self._http_url = http_url or (lambda: enrolment.http_url)

    def options(self, path: str) -> dict[str, Any]:
        """Arguments of one aiohttp request of this path, made soon."""
        proof = member_proof(self._identity, self._enrolment.run_id, path, self._wall_clock())
        options = pinned_options(f"{self._http_url()}{path}", self._enrolment.credentials.ca_pem)
        return {**options, "headers": proof}
