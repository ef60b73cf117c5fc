from __future__ import annotations

import asyncio

from peer.donor.check.run import first_reached
from rollcast.wire.ids import RunId
from rollcast.wire.joining.invite import Invite


async def test_the_first_place_whose_ports_answer_is_taken_and_the_others_are_explained() -> None:
    async def taken(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(taken, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        invite = Invite(
            run_id=RunId("run"),
            role="peer",
            http_url=f"https://no-such-host.invalid:{port}",
            grpc_address=f"no-such-host.invalid:{port}",
            ca_sha256="a" * 64,
            learner_public_key="b" * 64,
            token="t",
            further=(f"127.0.0.1:1:{port}",),
        )
        found, failures = await first_reached(invite, ["127.0.0.1"])
        assert found is not None
        assert (found.http_url, found.grpc_address) == (f"https://127.0.0.1:{port}", f"127.0.0.1:{port}")
        assert [(failed.hop, failed.address) for failed in failures] == [
            ("name lookup", f"no-such-host.invalid:{port}"),
            ("connection", "127.0.0.1:1"),
        ]
        assert (await first_reached(invite))[0] is None
