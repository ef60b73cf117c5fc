"""Test the routes that answer in every state of the coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollcast.runtime.errors import JoinRefused, ProtocolMismatch, StoreError
from tests.coordinator.http.serving import KEY, Given, served
from tests.coordinator.sample_status import sample_status


async def test_health_ready_metrics_and_status(tmp_path: Path) -> None:
    given = Given(not_ready="the run is over", status=sample_status(reward_train=float("nan")))
    async with served(tmp_path, given) as page:
        assert await page.get("/health") == (200, {"status": "ok"})
        assert await page.get("/ready") == (503, {"ready": False, "reason": "the run is over"})
        async with page.client.get(f"{page.url}/metrics") as response:
            assert response.content_type == "text/plain"
            assert await response.text() == "rollcast_learner_step 87.0\n"
        _, status = await page.get("/api/v1/status")
        assert (status["step"], status["reward_train"]) == (87, None)
        assert (await page.get("/api/v1/ca"))[1]["ca_pem"].startswith("-----BEGIN CERTIFICATE")


async def test_strangers_get_no_reason(tmp_path: Path) -> None:
    async with served(tmp_path, Given(not_ready="out of money", open_reading=False)) as page:
        assert await page.get("/ready") == (503, {"ready": False})
        assert (await page.get("/ready", KEY))[1]["reason"] == "out of money"


async def test_session_names_the_caller(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        status, said = await page.get("/api/v1/session")
        assert (status, said["who"], said["access"], said["reading_is_open"]) == (200, "loopback", "viewer", True)
        _, said = await page.get("/api/v1/session", KEY)
        assert (said["who"], said["access"], said["run_name"]) == ("run's key", "admin", "local")


async def test_a_join_gets_its_certificate(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        status, said = await page.post("/api/v1/join", {}, token=None)
        assert (status, said["peer_id"]) == (200, "12D3KooW")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (JoinRefused("the invite has expired", fix="ask for another"), 403, "RC301"),
        (ProtocolMismatch("no common protocol"), 403, "RC204"),
        (StoreError("the disk is full"), 503, "RC401"),
    ],
)
async def test_refused_join_has_a_reason(tmp_path: Path, error: Exception, status: int, code: str) -> None:
    async with served(tmp_path) as page:
        page.desk.answer = error
        got, body = await page.post("/api/v1/join", {})
        assert (got, body["code"], body["what"]) == (status, code, error.args[0])
