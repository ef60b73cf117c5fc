"""Test an operator's acts on a real coordinator over HTTP, and that they outlive a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from coordinator.stores.story import story_of
from rollcast.runtime.errors import Banned
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import PeerId
from rollcast.wire.joining.enrol import enrol
from tests.coordinator.running import WAIT_S, Member, Running, running


async def act(coordinator: Running, path: str, values: dict[str, Any]) -> dict[str, Any]:
    key = (coordinator.folder.secrets / "operator.key").read_text().strip()
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as client,
        client.post(
            f"{coordinator.http_url}{path}", json=values, headers={"Authorization": f"Bearer {key}"}
        ) as response,
    ):
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


async def on_peers(coordinator: Running, name: str, peer_id: PeerId) -> None:
    done = await act(coordinator, "/api/v1/acts/peers", {"act": name, "peers": [peer_id], "reason": "a test"})
    assert done == {"done": [peer_id], "failed": []}


async def test_acts_reach_peers_and_outlive_a_coordinator(tmp_path: Path) -> None:
    learner, good, bad = Identity.generate(), Identity.generate(), Identity.generate()
    async with running(tmp_path, learner=learner) as first:
        enrolled = [await first.join("peer", one) for one in (good, bad)]
        async with Member(enrolled[0]) as drained, Member(enrolled[1]) as banned:
            for member, name in ((drained, "good"), (banned, "bad")):
                await member.hello(name=name)
                await member.next("welcome")
            await on_peers(first, "drain", good.peer_id)
            told = await drained.next("activation")
            assert (told.active, told.reason) == (False, "drained by the operator: a test")
            await on_peers(first, "ban", bad.peer_id)
            refused = await banned.next("refused")
            assert (refused.code, refused.fix) == ("RC308", "ask the operator of the run")
            assert "banned by the operator: a test" in refused.what
        with pytest.raises(Banned):
            await enrol(first.invite("peer"), bad, tmp_path / "anew", WAIT_S)  # in an empty state folder
        changed = await act(first, "/api/v1/acts/settings", {"publish_every_steps": 2, "usd_per_hour_max": 3.0})
        assert changed["usd_per_hour_max"]["value"] == 3.0
        preview = await act(first, "/api/v1/acts/settings/preview", {"act": "drain", "peers": ["good"]})
        assert preview["sentence"].startswith("No preview yet")
    async with running(tmp_path, learner=learner) as second:
        settings = (await act(second, "/api/v1/acts/settings", {}))["publish_every_steps"]
        assert (settings["value"], settings["configured"]) == (2, 1)
        async with Member(enrolled[0]) as drained, Member(enrolled[1]) as banned:
            await drained.hello(name="good")
            assert (await drained.next("activation")).reason == "drained by the operator: a test"
            await banned.hello(name="bad")
            assert (await banned.next("refused")).code == "RC308"
            for one in (good, bad):
                await on_peers(second, "enable", one.peer_id)
            assert (await drained.next("activation")).active
        await enrol(second.invite("peer"), bad, tmp_path / "anew", WAIT_S)
    told_of = {line.what for line in story_of(second.folder, f"peer {bad.peer_id}").lines}
    assert "banned (bad): banned by the operator: a test" in told_of
    assert "enabled (bad): no longer banned: a test" in told_of
