"""Join many identities to a run at the same time, without keeping anything on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp

from rollcast.runtime.errors import ProcessFailed
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials, new_tls_key
from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.joining.invite import Invite
from rollcast.wire.joining.request import JOIN_DOMAIN, join_payload
from rollcast.wire.protocol import PROTOCOL_RANGE

CONNECTIONS = 16
_TIMEOUT_S = 60.0  # for one join; most of it is waiting for a turn


async def join_many(invite: Invite, count: int, identity: Identity | None = None) -> list[Enrolment]:
    """Join ``count`` members with this invite over a few connections, each with a new identity unless one is given.

    Raises:
        ProcessFailed: a join was refused.
    """
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        async with session.get(f"{invite.http_url}/api/v1/ca") as response:
            ca_pem = (await response.json())["ca_pem"].encode()
        turns: asyncio.Queue[None] = asyncio.Queue(CONNECTIONS)

        async def join() -> Enrolment:
            await turns.put(None)
            try:
                return await _join(session, invite, ca_pem, identity or Identity.generate())
            finally:
                turns.get_nowait()

        joined: Sequence[Enrolment] = await asyncio.gather(*(join() for _ in range(count)))
    return list(joined)


async def _join(session: aiohttp.ClientSession, invite: Invite, ca_pem: bytes, identity: Identity) -> Enrolment:
    key = new_tls_key()
    csr_pem = key.csr_pem()
    request = {
        "token": invite.token,
        "role": invite.role,
        "public_key": identity.public_key.hex(),
        "csr_pem": csr_pem.decode(),
        "signature": identity.sign_bytes(JOIN_DOMAIN, join_payload(invite.run_id, invite.token, csr_pem)).hex(),
        "protocol": {"min": PROTOCOL_RANGE[0], "max": PROTOCOL_RANGE[1]},
    }
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with session.post(f"{invite.http_url}/api/v1/join", json=request, timeout=timeout) as response:
        if response.status != 200:
            raise ProcessFailed(f"a join was answered with {response.status}", cause=(await response.text())[:400])
        answer = await response.json()
    return Enrolment(
        credentials=TlsCredentials(ca_pem, answer["certificate_pem"].encode(), key.private_pem),
        run_id=invite.run_id,
        grpc_address=answer["grpc_address"],
        http_url=invite.http_url,
        learner_public_key=bytes.fromhex(invite.learner_public_key),
        peer_id=identity.peer_id,
    )
