"""Script the coordinator's joins over HTTP, with certificates as short-lived as a test sets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from rollcast.wire.identity.tls import TlsCredentials
from tests.learner.scripted_run import LOOPBACK, RUN_ID, Authority


class ScriptedDoor:
    """A server that enrols the learner; ``lifetimes_s`` are those of the next certificates, an hour if empty."""

    def __init__(self, authority: Authority, grpc_address: str, lifetimes_s: list[float]) -> None:
        self.issued: list[TlsCredentials] = []  # without their keys
        self.url = ""
        self._authority = authority
        self._grpc_address = grpc_address
        self._lifetimes_s = lifetimes_s

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ScriptedDoor]:
        application = web.Application()
        application.router.add_get("/api/v1/ca", self._ca)
        application.router.add_post("/api/v1/join", self._join)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, LOOPBACK, 0).start()
        self.url = f"http://{LOOPBACK}:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _ca(self, _request: web.Request) -> web.Response:
        return web.json_response({"ca_pem": self._authority.ca.certificate_pem.decode("ascii")})

    async def _join(self, request: web.Request) -> web.Response:
        wish = json.loads(await request.read())
        learner = self._authority.learner
        assert (wish["role"], wish["public_key"]) == ("learner", learner.public_key.hex())
        lifetime_s = self._lifetimes_s.pop(0) if self._lifetimes_s else 3600.0
        certificate = self._authority.ca.issue(
            wish["csr_pem"].encode("ascii"), peer_id=learner.peer_id, role="learner", lifetime_s=lifetime_s
        )
        self.issued.append(TlsCredentials(self._authority.ca.certificate_pem, certificate, b""))
        answer = {"certificate_pem": certificate.decode("ascii"), "run_id": RUN_ID, "grpc_address": self._grpc_address}
        return web.json_response(answer)
