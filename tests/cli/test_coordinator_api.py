from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollcast.cli import coordinator_api
from rollcast.cli.coordinator_api import Target, fetch, post
from rollcast.runtime.errors import (
    ConfigError,
    MalformedMessage,
    RollcastError,
    RunFolderError,
    RunOver,
    StoreError,
    Unreachable,
    WrongKey,
)
from rollcast.runtime.start_deadline import StartReport
from rollcast.web.headers import RUN_HEADER
from rollcast.wire.identity.tls import RunCA, TlsCredentials, new_tls_key
from rollcast.wire.ids import RunId
from rollcast.wire.joining.error_json import error_to_json

Answer = Callable[[], web.Response]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[str]]]:
    servers: list[TestServer] = []

    async def start(answer: Answer, **options: object) -> str:
        async def handler(_request: web.Request) -> web.Response:
            return answer()

        app = web.Application()
        app.router.add_get("/x", handler)
        servers.append(TestServer(app, scheme="https" if options else "http"))
        await servers[-1].start_server(**options)
        return f"{servers[-1].scheme}://127.0.0.1:{servers[-1].port}"

    yield start
    for server in servers:
        await server.close()


def in_folder(folder: Path, url: str) -> Target:
    (folder / "endpoints.json").write_text(json.dumps({"http_url": url, "page_url": url, "grpc_address": ""}))
    return Target(folder)


async def fetched(target: Target) -> object:
    async with aiohttp.ClientSession() as session:
        return await fetch(session, target, "/x")


async def test_run_folder_and_url_reach_the_coordinator(tmp_path: Path, serve: Callable[..., Awaitable[str]]) -> None:
    url = await serve(lambda: web.json_response({"a": 1}))
    assert await fetched(in_folder(tmp_path, url)) == {"a": 1}
    assert await fetched(Target(tmp_path / "nowhere", url + "/")) == {"a": 1}


async def test_a_port_that_another_run_has_now_is_not_asked(
    tmp_path: Path, serve: Callable[..., Awaitable[str]]
) -> None:
    """A finished run's folder still names its address, which the next run of this machine takes."""
    url = await serve(lambda: web.json_response({"a": 1}, headers={RUN_HEADER: "run-2"}))
    target = in_folder(tmp_path, url)
    assert await fetched(target) == {"a": 1}, "a folder of an earlier release does not name its run"
    endpoints = {"http_url": url, "page_url": url, "grpc_address": "", "run_id": "run-2"}
    (tmp_path / "endpoints.json").write_text(json.dumps(endpoints))
    assert await fetched(target) == {"a": 1}
    (tmp_path / "endpoints.json").write_text(json.dumps(endpoints | {"run_id": "run-1"}))
    with pytest.raises(Unreachable, match="is not running") as caught:
        await fetched(target)
    assert "run-2 has its address" in caught.value.cause
    assert await fetched(Target(tmp_path, url)) == {"a": 1}, "who gives an address means what answers there"


async def test_https_is_checked_against_the_runs_ca(tmp_path: Path, serve: Callable[..., Awaitable[str]]) -> None:
    authority, key = RunCA.create(tmp_path / "secrets", RunId("run-1")), new_tls_key()
    certificate = authority.issue_coordinator(key.csr_pem(), [])
    credentials = TlsCredentials(authority.certificate_pem, certificate, key.private_pem)
    url = await serve(lambda: web.json_response({"a": 1}), ssl=credentials.ssl_server_context(ask_client=False))
    (tmp_path / "ca.pem").write_bytes(authority.certificate_pem)
    assert await fetched(in_folder(tmp_path, url)) == {"a": 1}
    assert await fetched(Target(tmp_path, url, tmp_path / "ca.pem")) == {"a": 1}
    with pytest.raises(WrongKey) as caught:
        await fetched(Target(tmp_path, url))
    assert "--ca-file" in caught.value.fix
    with pytest.raises(ConfigError):
        await fetched(Target(tmp_path, url, tmp_path / "endpoints.json"))


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
async def test_folder_without_a_coordinator_has_a_fix(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "endpoints.json").write_text(content)
    with pytest.raises(RunFolderError) as caught:
        await fetched(Target(tmp_path))
    assert "--url" in caught.value.fix


@pytest.mark.parametrize("path", ["/api/v1/status", "/x"])
async def test_a_folder_that_does_not_exist_holds_no_run(path: str) -> None:
    target = Target(Path("runs/none"))
    async with aiohttp.ClientSession() as session:
        with pytest.raises(RunFolderError, match="runs/none holds no run"):
            await (fetch(session, target, path) if path != "/x" else post(session, target, path, {}))


def test_an_address_without_http_is_named() -> None:
    with pytest.raises(ConfigError) as raised:
        Target(Path("runs/none"), "10.0.0.7:7401").http_url()
    assert raised.value.fix.endswith("http://10.0.0.7:7401")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://"])
async def test_missing_coordinator_is_unreachable(tmp_path: Path, url: str) -> None:
    with pytest.raises(Unreachable):
        await fetched(Target(tmp_path, url))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda: web.Response(status=404), Unreachable),
        (lambda: web.Response(status=503, text=error_to_json(StoreError("busy"))), StoreError),
        (lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), Unreachable),
        (lambda: web.Response(text="<html>"), MalformedMessage),
        (lambda: web.Response(text="[1]"), MalformedMessage),
        (lambda: web.Response(text=" " * 2000), MalformedMessage),
    ],
)
async def test_other_answers(
    answer: Answer,
    expected: type[RollcastError],
    serve: Callable[..., Awaitable[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator_api, "ANSWER_BYTES_MAX", 1000)
    with pytest.raises(expected):
        await fetched(Target(tmp_path, await serve(answer)))


async def test_act_carries_the_key_of_the_run_folder(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"key": request.headers["Authorization"], "values": await request.json()})

    app = web.Application()
    app.router.add_post("/x", handler)
    server = TestServer(app)
    await server.start_server()
    target = Target(tmp_path, str(server.make_url("/")))
    async with aiohttp.ClientSession() as session:
        with pytest.raises(RunFolderError, match="no key for acts"):
            await post(session, target, "/x", {})
        (tmp_path / "secrets").mkdir()
        (tmp_path / "secrets" / "operator.key").write_text("secret\n")
        answer = await post(session, target, "/x", {"pin": "on"})
    await server.close()
    assert answer == {"key": "Bearer secret", "values": {"pin": "on"}}


async def test_reading_carries_a_token_only_where_that_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"token": request.headers.get("Authorization", "")})

    app = web.Application()
    app.router.add_get("/x", handler)
    server = TestServer(app)
    await server.start_server()
    url = str(server.make_url("")).rstrip("/")
    monkeypatch.delenv(coordinator_api.TOKEN_VARIABLE, raising=False)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "operator.key").write_text("secret")
    assert await fetched(in_folder(tmp_path, url)) == {"token": "Bearer secret"}
    assert await fetched(Target(tmp_path, url)) == {"token": ""}  # the address may belong to another server
    monkeypatch.setenv(coordinator_api.TOKEN_VARIABLE, "mine")
    assert await fetched(Target(tmp_path, url)) == {"token": "Bearer mine"}
    with pytest.raises(ConfigError, match="without TLS"):
        await fetched(Target(tmp_path, "http://192.0.2.1:1"))
    await server.close()


@pytest.mark.parametrize(
    ("phase", "of_up", "fix"),
    [
        ("finished", True, "read its folder with `rollcast report`, `samples`, `explain` and `why`"),
        ("stopped", True, "rollcast up --continue"),
        ("stopped", False, "start its coordinator to go on"),
    ],
)
async def test_a_run_that_is_over_says_what_to_do_instead(tmp_path: Path, phase: str, of_up: bool, fix: str) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"phase": phase, "ended_because": phase}))
    if of_up:
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "up.json").write_text("{}")
    with pytest.raises(RunOver) as over:
        await fetched(in_folder(tmp_path, "http://127.0.0.1:1"))
    assert over.value.cause == f"it ended: {phase}"
    assert fix in over.value.fix


async def test_a_coordinator_that_starts_says_what_it_does(tmp_path: Path) -> None:
    StartReport.write(tmp_path / "starting.json", "loading the task: 1,000 rows read")
    with pytest.raises(RunFolderError, match="does not answer yet") as starting:
        await fetched(Target(tmp_path))
    assert starting.value.cause == "it is starting: loading the task: 1,000 rows read"
