"""Turn a chat, or a prompt with its completion, into token ids of which the model's own answers are trained on.

Answers become the tokens that a rollout has: a prompt is encoded up to where the answer begins, and the answer by
itself up to the token that ends it. Which tokens are trained on follows from these pieces, never from a search in the
text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rollcast.runtime.errors import TaskError
from rollcast.wire.text.chat_template import Message
from rollcast.wire.text.hub_tokenizer import HubTokenizer
from rollcast.wire.text.tokenizer import TextTokenizer

ASSISTANT = "assistant"
MESSAGES_MAX = 1000
_ROLES = frozenset({"system", "developer", "user", ASSISTANT, "tool"})


class Piece(NamedTuple):
    """A run of tokens that are all trained on, or none of them."""

    token_ids: tuple[int, ...]
    trained: bool


Pieces = tuple[Piece, ...]


def pieces_of_completion(tokenizer: TextTokenizer, prompt: str, completion: str) -> Pieces:
    """Return a prompt in the chat template, if the tokenizer has one, and the completion with the token that ends it.

    Raises:
        TaskError: a text cannot be encoded.
    """
    answer = (*tokenizer.encode(completion), tokenizer.eos_id)
    return (Piece(tuple(tokenizer.encode_prompt(prompt)), False), Piece(answer, True))


def pieces_of_chat(tokenizer: HubTokenizer, messages: Any) -> list[Pieces]:
    """Return the token sequences that train every answer of a chat once.

    That is one sequence where the template renders the chat's beginning the same whatever follows. Templates that
    change earlier turns, as those do that leave out earlier reasoning, give a new sequence from the answer on whose
    beginning they change: each answer is trained after the very tokens that a rollout would have before it.

    Args:
        messages: objects with the texts ``role`` and ``content``, and what else the chat template reads.

    Raises:
        TaskError: the messages are malformed or without an answer, or the template cannot render them.
    """
    checked = _checked(messages)
    sequences: list[list[Piece]] = []
    rendered = ""  # the text of the newest sequence
    for number, message in enumerate(checked):
        if message["role"] != ASSISTANT:
            continue
        before = tokenizer.render(checked[:number], answer_begins=True)
        after = tokenizer.render(checked[: number + 1], answer_begins=False)
        if not after.startswith(before):
            raise TaskError(
                "the chat template renders an answer otherwise than the prompt for it",
                cause=f"up to message {number + 1} the two texts differ in their beginning",
                fix="correct the template, or give prompts and completions",
            )
        if not sequences or not before.startswith(rendered):
            sequences.append([])
            rendered = ""
        sequences[-1].append(Piece(tuple(tokenizer.encode_rendered(before[len(rendered) :])), False))
        sequences[-1] += _answer(tokenizer, after[len(before) :])
        rendered = after
    return [tuple(pieces[:-1]) for pieces in sequences]  # what the template writes behind the last answer is not read


def _answer(tokenizer: HubTokenizer, text: str) -> list[Piece]:
    """Return an answer up to the token that ends it, which is trained on, and what the template writes behind it."""
    ids = tokenizer.encode_rendered(text)
    end = next((place + 1 for place, one in enumerate(ids) if one in tokenizer.stop_ids), 0)
    if not end:
        raise TaskError(
            "the chat template writes no token that ends an answer",
            cause=f"none of the stop tokens {list(tokenizer.stop_ids)} follows it",
            fix="set eos_token_id in generation_config.json to the token that the template writes",
        )
    return [Piece(tuple(ids[:end]), True), Piece(tuple(ids[end:]), False)]


def _checked(messages: Any) -> Sequence[Message]:
    if not isinstance(messages, list) or not 1 < len(messages) <= MESSAGES_MAX:
        raise TaskError(f"a chat is no list of 2 to {MESSAGES_MAX} messages")
    for number, one in enumerate(messages, 1):
        if not isinstance(one, Mapping) or one.get("role") not in _ROLES:
            raise TaskError(f"message {number} has none of the roles {', '.join(sorted(_ROLES))}")
        if not isinstance(one.get("content"), str) and not one.get("tool_calls"):
            raise TaskError(f"the content of message {number} is no text")
    # A column of Parquet gives every message every field, None where it has none.
    kept = [{key: value for key, value in one.items() if value is not None} for one in messages]
    if kept[0]["role"] == ASSISTANT:
        raise TaskError("a chat begins with an answer")
    if all(one["role"] != ASSISTANT for one in kept):
        raise TaskError("a chat has no answer")
    return kept
