from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.environments.alone import AloneGame
from coordinator.environments.games import Turn
from coordinator.environments.gym import GymGame, GymGames, messages_of
from rollcast.runtime.errors import TaskError

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


def said(text: str, *, last: bool = False) -> Turn:
    return Turn(text, text, "", (), last)


async def test_agents_act_in_the_order_of_the_game() -> None:
    game = GymGames(f"{GAMES}:Haggle", {}).new()
    start = await game.reset(7)
    assert (start.agents, start.speaker) == (("seller", "buyer"), "seller")
    assert [one["content"] for one in start.view] == ["sell:", "cost 7"]
    reply = await game.step(said("3"))
    assert (reply.speaker, reply.messages[0]["content"], reply.rewards, reply.done) == (
        *("buyer", "3"),
        *({"seller": 1.0}, False),
    )
    assert (await game.step(said("deal"))).rewards == {"seller": 0.5, "buyer": 0.25}


@pytest.mark.parametrize(
    ("name", "why"), [("NoTeacher", "no demonstrate"), ("Twins", "cannot be told apart")], ids=["teacher", "names"]
)
def test_agents_that_cannot_be_used_are_refused(name: str, why: str) -> None:
    with pytest.raises(TaskError, match=why):
        GymGames(f"{GAMES}:{name}", {})


async def test_an_answer_for_one_agent_is_none_for_several() -> None:
    game = GymGames(f"{GAMES}:OneReward", {}).new()
    await game.reset(7)
    with pytest.raises(ValueError, match="who acts next"):
        await game.step(said("3"))


async def test_a_teacher_plays_the_agents_that_are_not_seen() -> None:
    game = AloneGame(GymGames(f"{GAMES}:Haggle", {"first": "buyer"}).new())
    start = await game.reset(7)
    assert start.speaker == "seller"
    assert [one["content"] for one in start.view] == ["sell:", "0"]  # the buyer has spoken
    first = await game.step(said("9"))
    assert (first.speaker, first.messages[0]["content"], first.done) == ("seller", "2", False)
    assert first.reward == 3.0  # of the buyer's first turn, of its own one, and of the buyer's second
    assert await game.demonstrate() == "deal"
    last = await game.step(said("deal"))
    assert (last.reward, last.done) == (0.5, True)
    await game.close()


async def test_no_teacher_plays_on_after_the_last_turn() -> None:
    game = AloneGame(GymGames(f"{GAMES}:Haggle", {}).new())
    await game.reset(7)
    assert (await game.step(said("9", last=True))).reward == 1.0
    assert await game.demonstrate() == "1"


async def test_a_game_of_one_agent_stays_as_it_is(tmp_path: Path) -> None:
    game = AloneGame(GymGames(f"{GAMES}:ScriptedGame", {"folder": str(tmp_path)}).new())
    assert (await game.reset(7)).agents == ()
    assert (await game.step(said("end"))).reward == 0.5
    await game.close()
