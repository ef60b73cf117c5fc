"""Parse the tool calls that a policy writes, in the formats of the published chat templates. This module is pure.

Qwen2.5 and Qwen3 write `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them, beside other
text (the format of NousResearch/Hermes-Function-Calling; the model cards of Qwen/Qwen2.5 and Qwen/Qwen3). Llama 3.1 to
3.3 write one bare object `{"name": ..., "parameters": {...}}` as the whole message, perhaps after `<|python_tag|>`
(llama.com, "Llama 3.1 model cards and prompt formats", section on JSON-based tool calling).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ToolFormat = Literal["hermes", "llama"]

CALLS_MAX = 64  # of one turn; further ones are text like any other
_HERMES = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"
_THINK_START, _THINK_END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; ``arguments`` are the parsed JSON object, which nothing has compared with the tool's schema."""

    name: str
    arguments: Mapping[str, Any]


def format_of_template(source: str) -> ToolFormat:
    """Return the format that a chat template asks for; "hermes" for templates without tools."""
    return "llama" if "<tool_call>" not in source and '"parameters"' in source else "hermes"


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """The parts of an assistant turn: its thoughts, its calls in order, and the rest of its text."""

    reasoning: str
    content: str
    calls: tuple[ToolCall, ...]


def parse_turn(text: str, form: ToolFormat) -> ParsedTurn:
    """Return the parts of an assistant turn; what is not a whole call is text like any other.

    A call within a thinking block is a thought, and is not made.
    """
    reasoning, said = _split_thoughts(text)
    if form == "hermes":
        calls, content = _hermes(said)
    else:
        call = _call(said.strip().removeprefix(_PYTHON_TAG))
        calls, content = ((), said) if call is None else ((call,), "")
    return ParsedTurn(reasoning, content.strip(), calls)


def _hermes(said: str) -> tuple[tuple[ToolCall, ...], str]:
    """Return the calls in a text, and the rest of it. A malformed call stays text, so that it can be answered."""
    calls = list[ToolCall]()

    def taken(match: re.Match[str]) -> str:
        call = _call(match.group(1)) if len(calls) < CALLS_MAX else None
        if call is None:
            return match.group(0)
        calls.append(call)
        return ""

    content = _HERMES.sub(taken, said)
    return tuple(calls), content


def _split_thoughts(text: str) -> tuple[str, str]:
    """Return the thoughts and what follows them, which is empty if the turn ended before its thoughts did."""
    thoughts, ended, said = text.rpartition(_THINK_END)
    if not ended:
        said, _, thoughts = text.partition(_THINK_START)
    return thoughts.strip().removeprefix(_THINK_START).strip(), said


def _call(text: str) -> ToolCall | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters"))
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return ToolCall(name, arguments)
