"""Test the routes of rollouts."""

from __future__ import annotations

from pathlib import Path

from coordinator.api.rollouts import RolloutRoutes
from tests.coordinator.http.serving import Given, served
from tests.coordinator.prompts.stored_run import TOKENIZER, stored_run


async def test_rollouts_are_filtered_and_shown(tmp_path: Path) -> None:
    folder = await stored_run(tmp_path)
    (tmp_path / "served").mkdir()
    async with served(tmp_path / "served", Given(routes=RolloutRoutes(folder, TOKENIZER).routes())) as page:
        status, found = await page.get("/api/v1/rollouts?wrong=true&reward_min=0.5&peer=alpha&limit=1")
        assert (status, found["next_before"]) == (200, 3)
        assert [one["rollout_id"] for one in found["rollouts"]] == [3]
        status, shown = await page.get("/api/v1/rollouts/4")
        assert (status, shown["headline"]["parts"], shown["headline"]["state"]) == (200, {"format": 0.5}, "filled")
        said, tool = shown["turns"]
        assert (said["role"], said["peer"], said["tokens"][0]) == ("assistant", "alpha", ["0", -1.0])
        assert (tool["role"], tool["text"], tool["tokens"]) == ("tool", said["text"][1:], [])
        for path in ("?peer=beta", "?limit=1000", "?reward_min=nan", "?of=1", "/9", "/-1", "/none"):
            status, answer = await page.get(f"/api/v1/rollouts{path}")
            assert (status, answer["code"]) == (400, "RC305"), path
