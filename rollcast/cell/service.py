"""Run a cell's uplink from startup to orderly shutdown."""

from __future__ import annotations

import asyncio
from random import Random

import structlog

from learner.coordinator.access import Access
from learner.coordinator.client import CoordinatorClient
from peer.donor.control.limits import OwnerLimitsBook
from peer.service import PeerProcess
from peer.startup import INVITE_TIMEOUT_S, join_run, open_store, state_folder_lock
from rollcast.cell.config import UplinkConfig
from rollcast.cell.publishing import CellPublisher
from rollcast.cell.uplink import Uplink
from rollcast.runtime.errors import JoinRefused
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.joining.enrol import Enrolment, enrol
from rollcast.wire.joining.invite import read_invite

RENEW_TIMEOUT_S = 30.0

log = structlog.get_logger()


async def run(config: UplinkConfig, stop: asyncio.Event) -> int:
    """Run the uplink until the head ends the run or ``stop`` is set; return exit status 0.

    Raises:
        RollcastError: the head or the cell refused this process, or could not be reached for too long.
    """
    with state_folder_lock(config.state_folder):
        at_head = config.peer()
        place = await join_run(at_head, role="cell")
        access = await _join_cell(config, place.enrolment.run_id)
        client = CoordinatorClient(
            access.fresh,
            place.enrolment.learner_public_key,
            reconnect_timeout_s=config.coordinator_timeout_s,
            random=Random(),
        )

        async def credentials() -> TlsCredentials:
            return (await access.fresh()).credentials

        publisher = CellPublisher(client, credentials, Random())
        try:
            uplink = Uplink(client, await client.open(), publisher, Random())
            await uplink.learn()
            store = await asyncio.to_thread(open_store, at_head, place.enrolment.run_id)
            structlog.contextvars.bind_contextvars(peer_id=place.identity.peer_id)
            process = PeerProcess(OwnerLimitsBook(at_head), place, store, None, uplink)
            status = await process.run(stop)
            if not stop.is_set():  # the head has ended the run
                await client.report_status("finished", "the head has ended the run", {}, None)
            return status
        finally:
            await publisher.close()
            await client.close()


async def _join_cell(config: UplinkConfig, run_id: str) -> Access:
    """Join the cell in the learner's place."""
    identity = await asyncio.to_thread(Identity.load_or_create, config.state_folder / "cell" / "identity.key")
    invite = await read_invite("", config.cell_invite_file, INVITE_TIMEOUT_S)
    if invite.role != "learner" or invite.run_id != run_id:
        raise JoinRefused(
            f"the invite in {config.cell_invite_file} is for the role {invite.role} in the run {invite.run_id}",
            cause=f"the head's run is {run_id}",
            fix="give secrets/invite-learner.txt of the cell's coordinator, whose cell.invite_file is the same head's",
        )

    def join(timeout_s: float | None) -> asyncio.Future[Enrolment]:
        return asyncio.ensure_future(enrol(invite, identity, config.state_folder / "cell", timeout_s))

    return Access(await join(None), lambda: join(RENEW_TIMEOUT_S))
