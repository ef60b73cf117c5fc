"""Invites: a token that the ledger knows, with all that its holder needs to find the run and know it again."""

from __future__ import annotations

from coordinator.join import JoinDesk
from rollcast.wire.ids import Role, RunId
from rollcast.wire.joining.invite import Invite


class Inviting:
    """Makes invites. ``http_url`` is set once the port is bound, ``further`` places by whoever knows of some."""

    def __init__(self, desk: JoinDesk, *, run_id: RunId, ca_sha256: str, learner_public_key: str) -> None:
        self._desk = desk
        self._run_id = run_id
        self._ca_sha256 = ca_sha256
        self._learner_public_key = learner_public_key
        self.http_url = ""
        self.further: tuple[str, ...] = ()

    async def invite(self, role: Role, *, quota: int, lifetime_s: float, note: str = "") -> Invite:
        """A new one, durable. ``note``: for whom it is.

        Raises:
            StoreError, WaitTimedOut: the ledger does not keep it.
        """
        return Invite(
            run_id=self._run_id,
            role=role,
            http_url=self.http_url,
            grpc_address=self._desk.grpc_address,
            ca_sha256=self._ca_sha256,
            learner_public_key=self._learner_public_key,
            token=await self._desk.new_invite(role, quota=quota, lifetime_s=lifetime_s, note=note),
            further=self.further,
        )
