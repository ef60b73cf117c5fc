"""Check the answers of workers: their form and their size. This module is pure.

A worker is trusted, but the environment in it is a user's program, and what it says goes into training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from coordinator.environments.games import Message, Reply, Start
from rollcast.wire.limits import AGENTS_MAX

TEXT_LENGTH_MAX = 1 << 20  # characters of one answer, all messages together
MESSAGES_MAX = 64
TOOLS_MAX = 128
ROLES = frozenset({"system", "user", "assistant", "tool"})
REPLY_ROLES = frozenset({"user", "tool"})
_NEXT = "an agent that acts has to be one of its agents, and is shown something"


class EnvironmentFailed(Exception):
    """An environment gave no answer: that is not a reward of 0.

    ``retryable``: whether the same turn may be answered by a new environment.
    """

    def __init__(self, reason: str, *, retryable: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retryable = retryable


def parse_start(answer: Mapping[str, Any]) -> Start:
    """Return the beginning of an episode.

    Raises:
        EnvironmentFailed: the answer is something else.
    """
    messages, tools = _messages(answer.get("messages"), ROLES), answer.get("tools")
    if not messages:
        _refuse("it begins without a message")
    if not isinstance(tools, list) or len(tools) > TOOLS_MAX or not all(isinstance(one, dict) for one in tools):
        _refuse("its tools are not a list of objects")
    agents = answer.get("agents", [])
    if not isinstance(agents, list) or len(agents) > AGENTS_MAX or not all(isinstance(one, str) for one in agents):
        _refuse(f"its agents are not a list of at most {AGENTS_MAX} names")
    if not agents:
        return Start(messages, tuple(tools))
    speaker, shown = answer.get("speaker"), _messages(answer.get("shown"), REPLY_ROLES)
    if speaker not in agents or not shown:
        _refuse(f"it begins with the agent {speaker!r:.100} and {len(shown)} messages to it; {_NEXT}")
    return Start(messages, tuple(tools), tuple(agents), str(speaker), shown)


def parse_reply(answer: Mapping[str, Any], agents: Sequence[str] = ()) -> Reply:
    """Return the answer to a turn. ``agents``: those of the game, if there are several.

    Raises:
        EnvironmentFailed: the answer is something else.
    """
    done = answer.get("done")
    if not isinstance(done, bool):
        _refuse("it does not say whether it is done")
    messages = _messages(answer.get("messages"), REPLY_ROLES)
    if not messages and not done:
        _refuse("it answers a turn with nothing and is not done")
    reward = _finite(answer.get("reward"))
    if not agents:
        return Reply(messages, reward, done)
    speaker, rewards = answer.get("speaker"), answer.get("rewards")
    if not done and speaker not in agents:
        _refuse(f"it names {speaker!r:.100} as the agent that acts next; {_NEXT}")
    if not isinstance(rewards, dict) or not rewards.keys() <= set(agents):
        _refuse(f"its rewards are {rewards!r:.100}, which are not those of its agents")
    return Reply(messages, reward, done, str(speaker), {name: _finite(one) for name, one in rewards.items()})


def _finite(reward: Any) -> float:
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        _refuse(f"its reward is {reward!r:.100}, which is not a finite number")
    return float(reward)


def _messages(value: Any, roles: frozenset[str]) -> tuple[Message, ...]:
    if not isinstance(value, list) or len(value) > MESSAGES_MAX:
        _refuse(f"its messages are not a list of at most {MESSAGES_MAX}")
    for one in value:
        if not isinstance(one, dict) or one.get("role") not in roles or not isinstance(one.get("content"), str):
            _refuse(f"a message is not {{role, content}} with a role among {', '.join(sorted(roles))}: {one!r:.200}")
    if sum(len(one["content"]) for one in value) > TEXT_LENGTH_MAX:
        _refuse(f"its messages have more than {TEXT_LENGTH_MAX} characters")
    return tuple(_plain(value))


def _plain(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages with the fields that chat templates know."""
    known = ("role", "content", "name", "tool_call_id", "tool_calls")
    return [{name: one[name] for name in known if name in one} for one in messages]


def _refuse(what: str) -> NoReturn:
    raise EnvironmentFailed(f"the environment's answer cannot be used: {what}", retryable=False)
