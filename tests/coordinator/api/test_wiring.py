"""Test that all routes of a real coordinator answer as the API's description states, whatever they receive."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from coordinator.api.wiring import _health
from coordinator.http.openapi import PATH
from coordinator.shell.upload_refusal import Refusal
from coordinator.views.alerts import Health
from tests.coordinator.http.hostile_requests import TEXTS, bodies, queries
from tests.coordinator.running import WAIT_S, Member, running

TOKENS_PATH = "/api/v1/tokens"
#: Answers to these never end.
ENDLESS = {"/api/v1/stream"}
#: Reads for themselves what they need, so that the description cannot say it.
NEEDS_MORE = {"/api/v1/speed/down", "/api/v1/reach/seen"}


@dataclass
class Run:
    """A coordinator with one peer, in a thread of its own."""

    place: str
    key: str
    document: dict[str, Any] = field(init=False, repr=False)

    @property
    def operations(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return method, path and description of each operation."""
        return [
            (method.upper(), path, operation)
            for path, methods in self.document["paths"].items()
            for method, operation in methods.items()
            if path not in ENDLESS
        ]

    def ask(
        self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> tuple[int, str, bytes]:
        """Return status, content type and body of the answer."""
        connection = http.client.HTTPConnection(self.place, timeout=WAIT_S)
        headers = {"Authorization": f"Bearer {self.key}"}
        if body is not None:
            headers["Content-Type"] = content_type
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        answer = response.status, response.headers.get_content_type(), response.read()
        connection.close()
        return answer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder, ready, stopping = tmp_path_factory.mktemp("run"), threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def serve() -> None:
        async with running(folder) as coordinator, Member(await coordinator.join("peer")):
            found.extend((asyncio.get_running_loop(), coordinator.http_url, coordinator.folder))
            ready.set()
            await stopping.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    while not ready.wait(0.1):
        assert thread.is_alive(), "the coordinator did not start"
    loop, url, run_folder = found
    key = (run_folder.secrets / "operator.key").read_text().strip()
    served = Run(urlsplit(url).netloc, key)
    served.document = json.loads(served.ask("GET", PATH)[2])
    yield served
    loop.call_soon_threadsafe(stopping.set)
    thread.join(WAIT_S)


def check(run: Run, operation: dict[str, Any], answer: tuple[int, str, bytes]) -> None:
    """Check that an answer matches the description and is not an error of the coordinator."""
    status, content_type, body = answer
    assert status not in (500, 501), body
    response = operation["responses"].get(str(status), operation["responses"]["default"])
    if content_type != "application/json":
        assert content_type in response["content"]
        return
    schema = response["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": run.document["components"]}).validate(json.loads(body))


def test_the_description_is_valid(run: Run) -> None:
    OpenAPIV31SpecValidator(run.document).validate()


def test_every_read_matches_the_description(run: Run) -> None:
    for method, path, operation in run.operations:
        needs = [one for one in operation["parameters"] if one["required"]]
        if method == "GET" and not needs and path not in NEEDS_MORE:
            answer = run.ask(method, path)
            assert answer[0] == 200, (path, answer)
            check(run, operation, answer)


def test_audit_log_has_the_outcome_for_each_peer(run: Run) -> None:
    asked = {"act": "pin_on", "peers": ["nobody-is-called-that"]}
    assert run.ask("POST", "/api/v1/acts/peers", json.dumps(asked).encode())[0] == 200
    (row, *_) = json.loads(run.ask("GET", "/api/v1/audit")[2])["rows"]
    assert (row["act"], row["subject"], row["detail"]) == ("peers", "nobody-is-called-that", "pin_on")
    assert row["outcome"].startswith("0 done; not nobody-is-called-that: ")


def test_acts_need_more_than_reading_is_open_to(run: Run) -> None:
    for method, path, operation in run.operations:
        if operation["x-rollcast-access"] in ("operator", "admin"):
            place = re.sub(r"{\w+}", "1", path)
            status, _, body = Run(run.place, "wrong").ask(method, place, b"{}" if method == "POST" else None)
            assert (status, json.loads(body)["code"]) == (401, "RC307"), path


@given(data=st.data())
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_no_request_causes_an_internal_error(run: Run, data: st.DataObject) -> None:
    method, path, operation = data.draw(st.sampled_from(run.operations))
    definitions = run.document["components"]["schemas"]
    for name in re.findall(r"{(\w+)}", path):
        path = path.replace(
            f"{{{name}}}", quote(data.draw(TEXTS | st.integers().map(str)), safe="", errors="surrogatepass")
        )
    query = urlencode(data.draw(queries(operation["parameters"], definitions)), errors="surrogatepass")
    body = None
    if method == "POST":
        asked = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
        body = data.draw(bodies(asked, definitions))
    address = f"{path}?{query}" if query else path
    assume(len(address) < 8000)  # the server refuses longer ones before it makes a request of them
    check(run, operation, run.ask(method, address, body))


@given(path=st.text(max_size=40), body=st.binary(max_size=40), method=st.sampled_from(["GET", "POST", "PUT", "DELETE"]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(path="api/v1/tokens/%2e%2e/revoke", body=b"", method="POST")
def test_no_path_causes_an_internal_error(run: Run, path: str, body: bytes, method: str) -> None:
    status, content_type, answer = run.ask(method, "/" + quote(path), body)
    assert status < 500, answer
    assert status < 400 or content_type == "application/json", (status, answer)


def test_docs_name_every_route(run: Run) -> None:
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    rows = [
        f"| {method} | `{path}` | {operation['x-rollcast-access']} | {operation['summary']} |"
        for path, methods in run.document["paths"].items()
        for method, operation in ((name.upper(), one) for name, one in methods.items())
        if path != "/api/v1/stream"
    ]
    missing = [row for row in rows if row not in page]
    assert not missing, "docs/api.md lacks:\n" + "\n".join(missing)
    told = {line for line in page.splitlines() if line.startswith(("| GET |", "| POST |"))}
    assert told <= {*rows, *(line for line in told if "/api/v1/stream" in line)}


def test_the_dashboard_says_why_uploads_are_refused() -> None:
    refusals = iter([None, Refusal("the store does not answer", "Look at it.")])
    parts: Any = SimpleNamespace(refusal=SimpleNamespace(now=lambda: next(refusals)))
    assert _health(parts) == Health()
    assert _health(parts) == Health("the store does not answer", "Look at it.")
