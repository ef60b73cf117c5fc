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

CALLS_MAX = 64  # of one turn; further ones are ignored
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


def parse_tool_calls(text: str, form: ToolFormat) -> tuple[ToolCall, ...]:
    """Return the calls of an assistant turn, in order; what is not a whole call is text like any other.

    A call within a thinking block is a thought, and is not made.
    """
    said = _after_thinking(text)
    if form == "hermes":
        found = [match.group(1) for match in _HERMES.finditer(said)]
    else:
        found = [said.strip().removeprefix(_PYTHON_TAG)]
    calls = (_call(one) for one in found[:CALLS_MAX])
    return tuple(one for one in calls if one is not None)


def _after_thinking(text: str) -> str:
    """Return what follows the last thinking block; empty if the turn ended before its thoughts did."""
    _, ended, said = text.rpartition(_THINK_END)
    return said if ended else text.partition(_THINK_START)[0]


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
