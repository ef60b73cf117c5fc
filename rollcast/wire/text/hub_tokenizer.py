"""Load the tokenizer of a published model: tokenizer.json through the library `tokenizers`, and its chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcast.runtime.errors import MissingExtra, ModelError, TaskError
from rollcast.runtime.install import install_command
from rollcast.wire.limits import STOP_TOKENS_MAX
from rollcast.wire.text.chat_template import ChatTemplate, Message, Tool
from rollcast.wire.text.model_folder import (
    CHAT_TEMPLATE,
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_BYTES_MAX,
    TOKENIZER_CONFIG,
    ModelFolder,
)
from rollcast.wire.text.tokenizer import SIZE_MAX, UNKNOWN
from rollcast.wire.text.tool_calls import ToolFormat, format_of_template

# Stands for an assistant's turn in a rendered conversation: a character for private use, which no template changes.
_TURN = "\ue000"


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The settings by which a problem's text becomes a prompt."""

    enabled: bool = True  # render the model's chat template if it has one
    system: str = ""  # system message; empty: none
    arguments: Mapping[str, Any] = field(default_factory=dict)  # arguments of the template, such as enable_thinking


class HubDecoder:
    """A decoder of token ids to text, which is all that a peer needs of a published tokenizer.

    Args:
        library: see parse_tokenizer.
        stop_ids: each of them ends a completion.
    """

    def __init__(self, library: Any, stop_ids: tuple[int, ...]) -> None:
        self._library = library
        self._stop_ids = stop_ids
        self._known = known_ids(library)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text up to the first stop id, with special tokens; each id without text becomes U+FFFD."""
        texts: list[str] = []
        run: list[int] = []
        for token_id in ids:
            if token_id in self._stop_ids:
                break
            if token_id in self._known:
                run.append(token_id)
            else:
                texts += [self._text(run), UNKNOWN]
                run = []
        return "".join([*texts, self._text(run)])

    def _text(self, ids: list[int]) -> str:
        text: str = self._library.decode(ids, skip_special_tokens=False) if ids else ""
        return text


class HubTokenizer:
    """The tokenizer of a published model; see rollcast.wire.text.tokenizer.TextTokenizer.

    Special tokens in a problem's own text are refused: with them the text could pose as another speaker of the chat.

    Args:
        folder: with tokenizer.json, and tokenizer_config.json, generation_config.json, config.json as far as there.
        chat: the settings by which a problem becomes a prompt.

    Raises:
        ModelError: a file is missing or wrong, or no token, or too many, are known to end a completion.
        MissingExtra: tokenizers or jinja2 is not installed.
    """

    def __init__(self, folder: Path, chat: ChatSettings | None = None) -> None:
        files = ModelFolder(folder)
        data = files.read_bytes(TOKENIZER, TOKENIZER_BYTES_MAX)
        settings = files.read_optional_json(TOKENIZER_CONFIG)
        self._chat = chat or ChatSettings()
        self._tokenizer = parse_tokenizer(data, str(folder / TOKENIZER))
        self._known = known_ids(self._tokenizer)
        self._special = tuple(
            token.content for _, token in sorted(self._tokenizer.get_added_tokens_decoder().items()) if token.special
        )
        self.size = self._size(files, folder)
        self.eos_id, self.stop_ids = self._ends(files, settings, folder)
        self._decoder = HubDecoder(self._tokenizer, self.stop_ids)
        source = _template_source(files, settings) if self._chat.enabled else ""
        special = {name: _content(settings.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        self._template = ChatTemplate(source, special | dict(self._chat.arguments)) if source else None
        self.tool_format: ToolFormat = format_of_template(source)
        self._json = self._describe(data, source)
        if self._template is not None:
            self.encode_prompt("1 + 1 = ?")  # so that a template that cannot be used fails here, at startup

    def encode_prompt(self, text: str) -> list[int]:
        """Return the token ids of a problem in the chat template; without one, behind the tokens that begin a text."""
        return self.encode_chat([{"role": "user", "content": text}])

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Return the token ids of a conversation; the configured system message comes first if it has none of its own.

        Without a template they are the messages' texts, a line each, behind the tokens that begin a text.
        """
        for one in messages:
            self._check(str(one.get("content") or ""))
        if self._template is None:
            text = "\n".join(str(one["content"]) for one in messages)
            return list(self._tokenizer.encode(text, add_special_tokens=True).ids)
        return self.encode_rendered(self._template.render(self._with_system(messages), tools))

    def encode_rules(self, rules: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Return the token ids of what all agents of a game read; see TextTokenizer."""
        if self._template is None:
            return self.encode_chat(rules, tools)
        for one in rules:
            self._check(str(one.get("content") or ""))
        return self.encode_rendered(self._template.render(self._with_system(rules), tools, answer_begins=False))

    def encode_shown(self, rules: Sequence[Message], shown: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Return the token ids of what one agent is shown first; see TextTokenizer.

        They are what the template writes behind the rules when it renders both. As in a reply, special tokens are
        broken up: what is shown to one agent may be what another one wrote.
        """
        given = [{**one, "content": self._without_special(str(one["content"]))} for one in shown]
        if self._template is None:
            return self.encode("".join(str(one["content"]) for one in given))
        before = self._with_system(rules)
        text = self._template.render(before, tools, answer_begins=False)
        whole = self._template.render([*before, *given], tools)
        if not whole.startswith(text):
            raise TaskError(
                "the model's chat template changes the rules of a game where other messages follow",
                cause="several agents need rules that stay as they are",
                fix="give the rules as a system message, or use another template",
            )
        return self.encode_rendered(whole.removeprefix(text))

    def encode_reply(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Return the token ids between two turns of the policy; see TextTokenizer.

        The template is rendered with a mark in the place of the policy's turn, and what follows the mark is the reply:
        the template's way of closing a turn, the messages, and the start of the next turn. So neither the tokens that
        begin a text nor earlier messages, which some templates change later (Qwen3 removes thoughts), occur in it.
        Special tokens in a message's text are broken up: an environment may repeat what the policy wrote, and with them
        the policy could pose as another speaker of the chat.
        """
        given = [{**one, "content": self._without_special(str(one["content"]))} for one in messages]
        if self._template is None:
            text = "".join(str(one["content"]) for one in given)
            return [*([] if ended else [self.eos_id]), *self.encode(text)]
        start: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _TURN}]
        _, mark, rest = self._template.render([*start, *given]).partition(_TURN)
        if not mark:
            raise TaskError("the model's chat template leaves out assistant turns", fix="use a template for chats")
        ids = self.encode_rendered(rest)
        return ids[1:] if ended and ids and ids[0] in self.stop_ids else ids

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without template and special tokens."""
        self._check(text)
        return self.encode_rendered(text)

    def render(self, messages: Sequence[Message], *, answer_begins: bool) -> str:
        """Return a conversation in the chat template; see ChatTemplate.render.

        Raises:
            TaskError: the model has no chat template, or it cannot render these messages, or a message contains a
                special token.
        """
        if self._template is None:
            raise TaskError(
                "the model has no chat template",
                cause=f"there is none in {CHAT_TEMPLATE} or {TOKENIZER_CONFIG}, or it is switched off",
                fix="use prompts and completions, or another model",
            )
        for text in texts_of(messages):
            self._check(text)
        return self._template.render(messages, answer_begins=answer_begins)

    def _with_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages behind the configured system message, unless they have one of their own."""
        if not self._chat.system or any(one["role"] == "system" for one in messages):
            return messages
        return [{"role": "system", "content": self._chat.system}, *messages]

    def encode_rendered(self, text: str) -> list[int]:
        """Return the token ids of a part of a rendered conversation, whose special tokens are the template's own."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Decode token ids as HubDecoder does."""
        return self._decoder.decode(ids)

    def to_json(self) -> str:
        """Return the hashes of the tokenizer's parts as JSON; the files themselves are not included."""
        return self._json

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HubTokenizer) and self._json == other._json

    def __hash__(self) -> int:
        return hash(self._json)

    def _check(self, text: str) -> None:
        found = next((one for one in self._special if one in text), None)
        if found is not None:
            raise TaskError(
                f"a text contains the special token {found!r}",
                cause="it would end or begin a message",
                fix="take it out of the problem",
            )

    def _without_special(self, text: str) -> str:
        for special in self._special:
            text = text.replace(special, f"{special[:1]} {special[1:]}")
        return text

    def _size(self, files: ModelFolder, folder: Path) -> int:
        """Return the model's number of logits if config.json has it: it may be padded beyond the tokenizer's ids."""
        needed = max(self._known, default=-1) + 1
        size = files.read_optional_json(CONFIG).get("vocab_size", needed)
        if type(size) is not int or not needed <= size <= SIZE_MAX or not needed:
            raise ModelError(
                f"{folder}: the tokenizer has {needed} ids, config.json says vocab_size = {str(size)[:40]}",
                fix="take tokenizer and config.json from the same model",
            )
        return size

    def _ends(self, files: ModelFolder, settings: Mapping[str, Any], folder: Path) -> tuple[int, tuple[int, ...]]:
        named = self._tokenizer.token_to_id(_content(settings.get("eos_token")) or "")
        found: list[int] = [] if named is None else [named]
        for name in (GENERATION_CONFIG, CONFIG):
            value = files.read_optional_json(name).get("eos_token_id")
            found += value if isinstance(value, list) else [] if value is None else [value]
        ends = tuple(dict.fromkeys(found))
        if not ends or not all(type(one) is int and one in self._known for one in ends):
            raise ModelError(
                f"{folder}: no token is known to end a completion",
                cause=f"eos_token_id in {GENERATION_CONFIG} and {CONFIG}, eos_token in {TOKENIZER_CONFIG}: {ends!r}"[
                    :300
                ],
                fix=f"set eos_token_id in {GENERATION_CONFIG}",
            )
        if len(ends) > STOP_TOKENS_MAX:
            raise ModelError(
                f"{folder}: {len(ends)} tokens end a completion",
                cause=f"a sampler looks for at most {STOP_TOKENS_MAX}",
                fix=f"shorten eos_token_id in {GENERATION_CONFIG} and {CONFIG}",
            )
        return ends[0], ends

    def _describe(self, data: bytes, source: str) -> str:
        prompt = json.dumps([source, self._chat.system, dict(self._chat.arguments)], sort_keys=True, default=str)
        record = {
            "size": self.size,
            "stop_ids": list(self.stop_ids),
            "sha256": hashlib.sha256(data).hexdigest(),
            "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
        }
        return json.dumps({"hub": record})


def texts_of(value: Any) -> Iterator[str]:
    """Yield every text in a value of objects, lists and texts, such as messages with calls of tools."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from texts_of(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from texts_of(one)


def known_ids(library: Any) -> frozenset[int]:
    """Return the token ids that have a text."""
    return frozenset(library.get_vocab(with_added_tokens=True).values())


def parse_tokenizer(data: bytes, source: str) -> Any:
    """Parse a tokenizer.json into the library's tokenizer; ``source`` names the file in errors.

    Raises:
        ModelError: the data is no tokenizer.
        MissingExtra: tokenizers is not installed.
    """
    try:
        from tokenizers import Tokenizer as LibraryTokenizer
    except ImportError as error:
        fix = f"{install_command('coordinator')}, with `peer` instead on a peer"
        raise MissingExtra("a model's tokenizer needs the package tokenizers", cause=str(error), fix=fix) from None
    try:
        return LibraryTokenizer.from_buffer(data)
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{source} is not a tokenizer", cause=str(error)[:300]) from None


def _template_source(files: ModelFolder, settings: Mapping[str, Any]) -> str:
    """Return the chat template from its own file or from tokenizer_config.json, which holds one or several by name."""
    if (files.root / CHAT_TEMPLATE).exists():
        return files.read_bytes(CHAT_TEMPLATE, 1 << 20).decode("utf-8", "replace")
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else ""


def _content(token: Any) -> str:
    """Return a special token's text, which is given as a string or as an object with flags; empty if it is neither."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else ""
