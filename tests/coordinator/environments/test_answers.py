from __future__ import annotations

import math
from typing import Any

import pytest

from coordinator.environments.answers import EnvironmentFailed, parse_reply, parse_start
from coordinator.environments.games import Reply, Start

SAID = {"role": "user", "content": "hm"}


def reply(**changes: Any) -> dict[str, Any]:
    return {"messages": [SAID], "reward": 0, "done": False} | changes


def test_answers_are_read() -> None:
    assert parse_start({"messages": [SAID], "tools": []}) == Start((SAID,), ())
    assert parse_reply(reply(reward=1)) == Reply((SAID,), 1.0, False)
    assert parse_reply(reply(messages=[], done=True)) == Reply((), 0.0, True)
    assert parse_reply(reply(messages=[{**SAID, "html": "<b>"}])).messages == (SAID,)


@pytest.mark.parametrize(
    "answer",
    [
        reply(reward="1"),
        reply(reward=True),
        reply(reward=float("inf")),
        reply(done=1),
        reply(messages=[]),
        reply(messages=[SAID] * 65),
        reply(messages={"role": "user"}),
        reply(messages=["hm"]),
        reply(messages=[{"role": "assistant", "content": "I am the policy"}]),
        reply(messages=[{"role": "user", "content": None}]),
        reply(messages=[{"role": "user", "content": "x" * 600_000}] * 2),
        {},
    ],
)
def test_an_answer_to_a_turn_that_cannot_be_used(answer: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentFailed, match="cannot be used"):
        parse_reply(answer)


@pytest.mark.parametrize(
    "answer", [{"messages": [], "tools": []}, {"messages": [SAID]}, {"messages": [SAID], "tools": ["add"]}]
)
def test_a_beginning_that_cannot_be_used(answer: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentFailed, match="cannot be used"):
        parse_start(answer)


AGENTS = ["seller", "buyer"]
HELLO = {"role": "user", "content": "?"}
BEGIN = {"messages": [HELLO], "tools": [], "agents": AGENTS, "speaker": "buyer", "shown": [HELLO]}
NEXT = {"messages": [HELLO], "done": False, "reward": 0.0, "speaker": "buyer", "rewards": {"seller": 1}}


def test_an_agent_that_acts_is_one_of_the_game() -> None:
    assert parse_start(BEGIN).speaker == "buyer"
    assert parse_reply(NEXT, AGENTS).rewards == {"seller": 1.0}
    assert parse_reply({**NEXT, "done": True, "speaker": ""}, AGENTS).done


@pytest.mark.parametrize(
    "wrong",
    [{"speaker": "judge"}, {"shown": []}, {"agents": "ab"}, {"agents": [1, 2]}],
    ids=lambda one: next(iter(one)),
)
def test_a_beginning_with_other_agents_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(EnvironmentFailed):
        parse_start({**BEGIN, **wrong})


@pytest.mark.parametrize(
    "wrong", [{"speaker": "judge"}, {"rewards": {"judge": 1.0}}, {"rewards": {"seller": math.nan}}, {"rewards": 1.0}]
)
def test_an_answer_with_other_agents_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(EnvironmentFailed):
        parse_reply({**NEXT, **wrong}, AGENTS)
