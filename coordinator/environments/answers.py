"""Check the answers of workers: their form and their size. This module is pure.

A worker is trusted, but the environment in it is a user's program, and what it says goes into training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from coordinator.environments.games import Message, Reply, Start

TEXT_LENGTH_MAX = 1 << 20  # characters of one answer, all messages together
MESSAGES_MAX = 64
TOOLS_MAX = 128
ROLES = frozenset({"system", "user", "assistant", "tool"})
REPLY_ROLES = frozenset({"user", "tool"})


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
    return Start(messages, tuple(tools))


def parse_reply(answer: Mapping[str, Any]) -> Reply:
    """Return the answer to a turn.

    Raises:
        EnvironmentFailed: the answer is something else.
    """
    reward, done = answer.get("reward"), answer.get("done")
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        _refuse(f"its reward is {reward!r:.100}, which is not a finite number")
    if not isinstance(done, bool):
        _refuse("it does not say whether it is done")
    messages = _messages(answer.get("messages"), REPLY_ROLES)
    if not messages and not done:
        _refuse("it answers a turn with nothing and is not done")
    return Reply(messages, float(reward), done)


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
