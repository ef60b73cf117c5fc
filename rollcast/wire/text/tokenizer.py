"""Define the interface of every tokenizer, and a small tokenizer of our own.

Ours has whole pieces for a task's fixed wording and single characters for the rest. Those of published models are in
rollcast.wire.text.hub_tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollcast.runtime.errors import MalformedMessage, TaskError
from rollcast.wire.limits import TOKENIZER_JSON_LENGTH_MAX
from rollcast.wire.text.chat_template import Message, Tool
from rollcast.wire.text.tool_calls import ToolFormat

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""The character that an id without text decodes to, so that no answer consists of invisible tokens."""
SIZE_MAX = 1 << 21
"""The most ids that a tokenizer may have; the largest known have some 260,000."""


class TextTokenizer(Protocol):
    """A tokenizer turns text into token ids and back; ``to_json`` and the files that it names determine it."""

    @property
    def size(self) -> int:
        """Return the number of ids that the model gives logits for."""
        ...

    @property
    def eos_id(self) -> int:
        """Return the id that ends a demonstration."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Return the ids that end a completion, eos_id among them."""
        ...

    def encode_prompt(self, text: str) -> list[int]:
        """Return the token ids of the prompt for a problem's text.

        Raises:
            TaskError: the text cannot be encoded.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text alone.

        Raises:
            TaskError: the text cannot be encoded.
        """
        ...

    @property
    def tool_format(self) -> ToolFormat:
        """Return the format in which the policy writes tool calls."""
        ...

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Return the token ids of a conversation up to where the policy's first turn begins.

        Raises:
            TaskError: the messages cannot be encoded.
        """
        ...

    def encode_rules(self, rules: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Return the token ids of the messages that all agents of a game read, after which no turn begins yet.

        Raises:
            TaskError: the messages cannot be encoded.
        """
        ...

    def encode_shown(self, rules: Sequence[Message], shown: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Return the token ids that follow ``encode_rules``, up to where an agent's first turn begins.

        ``shown`` is what the agent is shown before that turn. Both together are one conversation of the template.

        Raises:
            TaskError: the messages cannot be encoded, or the template changes the rules where messages follow.
        """
        ...

    def encode_reply(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Return the token ids that follow a turn of the policy, up to where its next turn begins.

        They are the messages that answer it and all that the chat template puts around them. Earlier tokens are neither
        needed nor repeated, so whatever the policy generated stays as it is.

        Args:
            ended: whether the turn's last token is a stop token. If not, the reply begins with the template's own.

        Raises:
            TaskError: the messages cannot be encoded.
        """
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text up to the first end of a completion; it is defined for any ids, also those without text."""
        ...

    def to_json(self) -> str:
        """Return the form that is sent to the learner and stored: equal texts mean equal tokenizers."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizerRecord:
    """The facts that the learner needs of the run's tokenizer."""

    size: int
    sha256: str  # hash of the published model's tokenizer.json; empty for our own


def read_record(text: str) -> TokenizerRecord:
    """Parse the facts from any tokenizer's ``to_json``.

    Raises:
        MalformedMessage: it is none.
    """
    try:
        values = json.loads(text) if len(text) <= TOKENIZER_JSON_LENGTH_MAX else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or "hub" not in values:
        return TokenizerRecord(Tokenizer.from_json(text).size, "")
    size, digest = (values["hub"].get(name) if isinstance(values["hub"], dict) else None for name in ("size", "sha256"))
    if type(size) is not int or not 1 <= size <= SIZE_MAX or not isinstance(digest, str):
        raise MalformedMessage("a tokenizer cannot be read", cause="its size or its hash is out of range")
    return TokenizerRecord(size, digest)


class _TextOf(dict[int, str]):
    """The text of each id."""

    def __missing__(self, token_id: int) -> str:
        return UNKNOWN


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Our own tokenizer, with the ids: 0 padding, 1 end of sequence, then ``pieces``, then ``characters``, in order.

    Raises:
        TaskError: a piece or character is empty, longer than it should be, or occurs twice.
    """

    pieces: tuple[str, ...]
    characters: str
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)
    _texts: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _text_of: _TextOf = field(init=False, repr=False, compare=False)
    _longest_first: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        texts = (*self.pieces, *self.characters)
        if "" in texts or UNKNOWN in "".join(texts):
            raise TaskError("a tokenizer's pieces must not be empty or contain U+FFFD")
        if len(set(texts)) != len(texts):
            raise TaskError("a tokenizer's pieces and characters must all be different")
        object.__setattr__(self, "_texts", texts)
        object.__setattr__(self, "_ids", {text: index + 2 for index, text in enumerate(texts)})
        object.__setattr__(self, "_text_of", _TextOf(enumerate(texts, start=2)))
        object.__setattr__(self, "_longest_first", tuple(sorted(self.pieces, key=len, reverse=True)))

    @property
    def pad_id(self) -> int:
        """Return the id that fills rows of a batch; it is never part of a text."""
        return 0

    @property
    def eos_id(self) -> int:
        """Return the id that ends a completion."""
        return 1

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Return the ids that end a completion."""
        return (self.eos_id,)

    @property
    def size(self) -> int:
        """Return the number of ids."""
        return len(self._texts) + 2

    def encode_prompt(self, text: str) -> list[int]:
        """Return the same as ``encode``, because this tokenizer has no chat template."""
        return self.encode(text)

    @property
    def tool_format(self) -> ToolFormat:
        """Return the default format, because there is no chat template."""
        return "hermes"

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Return the ids of the messages' texts, one line each; there is no room for tools, which are left out."""
        return self.encode("\n".join(str(one["content"]) for one in messages))

    def encode_rules(self, rules: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Return the same as ``encode_chat``, because this tokenizer has no chat template."""
        return self.encode_chat(rules, tools)

    def encode_shown(self, rules: Sequence[Message], shown: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Return the ids of the shown messages' texts, one after the other."""
        return self.encode("".join(str(one["content"]) for one in shown))

    def encode_reply(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Return the end of sequence if the turn lacks it, and the messages' texts one after the other."""
        return [*([] if ended else [self.eos_id]), *self.encode("".join(str(one["content"]) for one in messages))]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of ``text``: at each place the longest fitting piece, else the character; no end id.

        Raises:
            TaskError: a character is in no piece and not in the alphabet.
        """
        ids = []
        at = 0
        while at < len(text):
            match = next((piece for piece in self._longest_first if text.startswith(piece, at)), text[at])
            token_id = self._ids.get(match)
            if token_id is None:
                raise TaskError(
                    f"the tokenizer has no token for {text[at]!r}",
                    cause=f"at character {at} of {text[:80]!r}",
                    fix="add the character to the task's alphabet",
                )
            ids.append(token_id)
            at += len(match)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text up to the first end of sequence; each id without text becomes U+FFFD."""
        known = list(ids)
        if self.eos_id in known:
            del known[known.index(self.eos_id) :]
        # One lookup a token, and no bytecode: completions are long, and the coordinator decodes every one.
        return "".join(map(self._text_of.__getitem__, known))

    def to_json(self) -> str:
        """Return the form that is sent to learner and peers."""
        return json.dumps({"pieces": list(self.pieces), "characters": self.characters})

    def to_hub(self) -> dict[str, dict[str, Any]]:
        """Return the tokenizer as the Hub's `tokenizer.json` and `tokenizer_config.json`, by file name."""
        special = ("<pad>", "<eos>")
        ids = {text: number for number, text in enumerate((*special, *self._texts))}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        # Pieces are added tokens, which are looked for first and longest first, as we do.
        added = [
            {"id": ids[text], "content": text, "special": text in special, **flags} for text in (*special, *self.pieces)
        ]
        model = {"type": "WordLevel", "vocab": ids, "unk_token": special[0]}
        one_by_one = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
        parts = {"normalizer": None, "pre_tokenizer": one_by_one, "post_processor": None, "decoder": {"type": "Fuse"}}
        head = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": special[0],
            "eos_token": special[1],
        }
        settings |= {"clean_up_tokenization_spaces": False}
        return {"tokenizer.json": {**head, **parts, "model": model}, "tokenizer_config.json": settings}

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Return the tokenizer that ``to_json`` wrote.

        Raises:
            MalformedMessage: it is not what ``to_json`` writes.
        """
        if len(text) > TOKENIZER_JSON_LENGTH_MAX:
            raise MalformedMessage(f"a tokenizer of {len(text)} characters is too long")
        try:
            value = json.loads(text)
            pieces, characters = value["pieces"], value["characters"]
            if not isinstance(characters, str) or not all(isinstance(piece, str) for piece in pieces):
                raise TypeError("pieces and characters must be text")
            return cls(tuple(pieces), characters)
        except (ValueError, KeyError, TypeError, RecursionError, TaskError) as error:
            raise MalformedMessage("a tokenizer cannot be read", cause=str(error)) from None
