from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.environments.games import Turn
from coordinator.environments.gym import GymGame, GymGames, messages_of

GAMES = Path(__file__).with_name("scripted_game.py")


async def test_a_teacher_says_what_it_would_do(tmp_path: Path) -> None:
    game = GymGames(f"{GAMES}:ScriptedGame", {"folder": str(tmp_path)}).new()
    await game.reset(7)
    assert await game.demonstrate() == "begin"
    await game.step(Turn("begin", "begin", "", (), last=False))
    assert await game.demonstrate() == "end"
    await game.close()
    assert await GymGames(f"{GAMES}:AsyncGame", {}).new().demonstrate() is None


async def test_an_environment_without_close_has_nothing_to_free() -> None:
    await GymGame(object()).close()


@pytest.mark.parametrize("value", [3, None, ["text"], {"role": "user"}])
def test_other_values_are_no_messages(value: object) -> None:
    with pytest.raises(ValueError, match="neither text nor a list"):
        messages_of(value, "user")


def test_an_empty_text_is_no_message() -> None:
    assert messages_of("", "user") == ()
    assert messages_of([{"role": "tool", "content": "3"}], "user") == ({"role": "tool", "content": "3"},)
