"""Test that a conversation of several turns is tokenised once: what is there stays, what is new is appended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollcast.runtime.errors import TaskError
from rollcast.wire.text.chat_template import Message
from rollcast.wire.text.hub_tokenizer import ChatSettings, HubTokenizer
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.text.tool_calls import ParsedTurn, ToolCall, format_of_template, parse_turn
from tests.wire.text.hub_tokenizer_files import tokenizer_folder
from tests.wire.text.published_templates import PUBLISHED, Published

pytest.importorskip("tokenizers")

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}
QUESTION: Message = {"role": "user", "content": "What is 12 + 34?"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 12, "b": 34}}}


class Conversation:
    """The tokens of an episode; ``say`` plays the policy and ``hear`` the environment."""

    def __init__(self, tokenizer: HubTokenizer, messages: list[Message], tools: list[Any]) -> None:
        self.tokenizer = tokenizer
        self.tokens = tokenizer.encode_chat(messages, tools)
        self.history = [list(self.tokens)]

    def say(self, text: str, end: int | None) -> None:
        self._append([*self.tokenizer.encode(text), *([] if end is None else [end])])

    def hear(self, *messages: Message) -> list[int]:
        reply = self.tokenizer.encode_reply(list(messages), ended=self.tokens[-1] in self.tokenizer.stop_ids)
        self._append(reply)
        return reply

    def text(self) -> str:
        return str(self.tokenizer._tokenizer.decode(self.tokens, skip_special_tokens=False))

    def _append(self, tokens: list[int]) -> None:
        self.tokens = self.tokens + tokens
        self.history.append(list(self.tokens))

    def retokenised(self) -> int:
        """Return how many tokens that were there before a turn are others after it."""
        pairs = zip(self.history, self.history[1:], strict=False)
        return sum(a != b for before, after in pairs for a, b in zip(before, after, strict=False))


@pytest.fixture(scope="module", params=PUBLISHED, ids=lambda one: f"{one.name}-{json.dumps(dict(one.arguments))}")
def published(request: pytest.FixtureRequest) -> Published:
    found: Published = request.param
    return found


@pytest.fixture(scope="module")
def tokenizer(published: Published, tmp_path_factory: pytest.TempPathFactory) -> HubTokenizer:
    return published.tokenizer(tmp_path_factory.mktemp("model") / "hub")


def written_call(published: Published) -> str:
    """Return the call as the published template writes it, which is what its model was trained to write."""
    messages: list[Message] = [QUESTION, {"role": "assistant", "content": "", "tool_calls": [CALL]}, QUESTION]
    text = published.template().render(messages, [ADD])
    start, end = ("<tool_call>", "</tool_call>") if "qwen" in published.name else ('{"name": "add"', "}}")
    return text[text.rindex(start) : text.rindex(end) + len(end)]


def test_the_tools_are_defined_before_the_first_turn(published: Published, tokenizer: HubTokenizer) -> None:
    with_tools = Conversation(tokenizer, [QUESTION], [ADD]).text()
    assert "Add two numbers." in with_tools
    assert "Add two numbers." not in Conversation(tokenizer, [QUESTION], []).text()
    assert with_tools == published.template().render([QUESTION], [ADD])


def test_an_episode_with_tool_calls_is_what_the_template_renders(published: Published, tokenizer: HubTokenizer) -> None:
    """Several turns, each appended, give the text of the whole conversation rendered at once."""
    episode = Conversation(tokenizer, [QUESTION], [ADD])
    call, eos = written_call(published), tokenizer.eos_id
    result: Message = {"role": "tool", "content": "46"}
    episode.say(call, eos)
    episode.hear(result)
    episode.say(call, eos)
    episode.hear(result)
    assert episode.retokenised() == 0
    called: Message = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    if published.name == "llama3.1":
        called = {"role": "assistant", "tool_calls": [CALL]}
    whole = published.template().render([QUESTION, called, result, called, result], [ADD])
    assert _without_newlines(episode.text()) == _without_newlines(whole.replace("<think>\n\n</think>", ""))
    for started in PUBLISHED:  # a text begins once
        if started.bos:
            assert episode.text().count(started.bos) == whole.count(started.bos)
    assert [one.name for one in parse_turn(call, tokenizer.tool_format).calls] == ["add"]
    assert parse_turn(call, tokenizer.tool_format).calls[0].arguments == {"a": 12, "b": 34}


def _without_newlines(text: str) -> str:
    """Return the text without line breaks and empty thoughts, which Qwen's template puts in other places of a history.

    Qwen2.5 writes a newline before the first call of a turn, and Qwen3 an empty thought into the last turn only: what
    the policy itself generated is kept instead.
    """
    return text.replace("<think>\n\n</think>", "").replace("\n", "")


def test_a_turn_that_is_cut_off_is_closed_by_the_reply(tokenizer: HubTokenizer) -> None:
    ended, cut = (Conversation(tokenizer, [QUESTION], []) for _ in range(2))
    ended.say("It is", tokenizer.eos_id)
    cut.say("It is", None)
    more: Message = {"role": "user", "content": "Go on."}
    whole, rest = cut.hear(more), ended.hear(more)
    assert whole == [tokenizer.eos_id, *rest]
    assert cut.tokens == ended.tokens
    assert cut.retokenised() == 0


def test_a_turn_may_end_with_any_stop_token(tokenizer: HubTokenizer) -> None:
    replies = []
    for stop in tokenizer.stop_ids:
        episode = Conversation(tokenizer, [QUESTION], [])
        episode.say("It is", stop)
        replies.append(episode.hear(QUESTION))
        assert episode.retokenised() == 0
    assert len({tuple(one) for one in replies}) == 1


def test_a_reply_does_not_begin_a_text_again(published: Published, tokenizer: HubTokenizer) -> None:
    episode = Conversation(tokenizer, [QUESTION], [ADD])
    before = episode.text().count(published.bos) if published.bos else 0
    episode.say("46", tokenizer.eos_id)
    episode.hear(QUESTION)
    assert not published.bos or before == episode.text().count(published.bos) == 1
    assert "Add two numbers." not in tokenizer.decode(tokenizer.encode_reply([QUESTION], ended=False)[1:])


def test_thoughts_stay_as_they_were_generated(tokenizer: HubTokenizer) -> None:
    """Qwen3's template removes thoughts from earlier turns; the tokens that the policy generated have to stay."""
    episode = Conversation(tokenizer, [QUESTION], [])
    thought = "<think>\nTwelve and thirty-four.\n</think>\n\n46"
    episode.say(thought, tokenizer.eos_id)
    episode.hear({"role": "user", "content": "Sure?"})
    episode.say("<think>\nYes.\n</think>\n\nYes", tokenizer.eos_id)
    episode.hear({"role": "user", "content": "Thanks."})
    assert thought in episode.text()
    assert episode.retokenised() == 0


def test_an_environment_cannot_speak_for_another(published: Published, tokenizer: HubTokenizer) -> None:
    special = published.ends[0]
    reply = tokenizer.encode_reply([{"role": "user", "content": f"You wrote {special}"}], ended=True)
    harmless = tokenizer.encode_reply([{"role": "user", "content": "You wrote"}], ended=True)
    assert reply.count(tokenizer.eos_id) == harmless.count(tokenizer.eos_id)
    with pytest.raises(TaskError, match="special token"):
        tokenizer.encode_chat([{"role": "user", "content": special}])


def test_several_results_are_one_reply(tokenizer: HubTokenizer) -> None:
    results: list[Message] = [{"role": "tool", "content": "46"}, {"role": "tool", "content": "47"}]
    text = str(tokenizer._tokenizer.decode(tokenizer.encode_reply(results, ended=True), skip_special_tokens=False))
    assert text.index("46") < text.index("47")


def test_without_a_template_texts_follow_each_other(tmp_path: Path) -> None:
    small = Tokenizer((), "0123456789<>\n")
    assert small.decode(small.encode_chat([{"role": "user", "content": "12"}, {"role": "user", "content": "3"}])) == (
        "12\n3"
    )
    assert small.encode_reply([{"role": "user", "content": ">"}], ended=True) == small.encode(">")
    assert small.encode_reply([{"role": "user", "content": ">"}], ended=False) == [small.eos_id, *small.encode(">")]
    plain = HubTokenizer(tokenizer_folder(tmp_path / "hub"), ChatSettings(enabled=False))
    assert plain.encode_reply([{"role": "user", "content": "12"}], ended=False) == [plain.eos_id, *plain.encode("12")]
    assert plain.encode_chat([{"role": "user", "content": "12"}]) == plain.encode("12")


def test_a_template_that_leaves_out_turns_is_refused(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "hub", chat_template="{{ messages[0].content }}")
    with pytest.raises(TaskError, match="leaves out assistant turns"):
        HubTokenizer(folder).encode_reply([QUESTION], ended=True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n'
            '<tool_call>{"name":"b","arguments":{}}</tool_call>',
            "ab",
        ),
        ('First <tool_call>{"name": "a", "arguments": {"x": [1]}}</tool_call>', "a"),
        ('<think><tool_call>{"name": "a", "arguments": {}}</tool_call></think>46', ""),
        ('<think><tool_call>{"name": "a", "arguments": {}}</tool_call>', ""),
        ('<tool_call>{"name": "a", "arguments": "x"}</tool_call>', ""),
        ('<tool_call>{"name": 1, "arguments": {}}</tool_call>', ""),
        ("<tool_call>{not JSON}</tool_call><tool_call>[]</tool_call>", ""),
        ('<tool_call>{"name": "a", "arguments": {}}', ""),
        ("[" * 100_000, ""),
        ("", ""),
    ],
)
def test_calls_in_the_format_of_qwen(text: str, names: str) -> None:
    assert "".join(one.name for one in parse_turn(text, "hermes").calls) == names


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name": "a", "parameters": {"x": 1}}', (ToolCall("a", {"x": 1}),)),
        (' <|python_tag|>{"name": "a", "parameters": {}} ', (ToolCall("a", {}),)),
        ('It is {"name": "a", "parameters": {}}', ()),
        ("46", ()),
    ],
)
def test_calls_in_the_format_of_llama(text: str, calls: tuple[ToolCall, ...]) -> None:
    assert parse_turn(text, "llama").calls == calls


def test_the_format_follows_from_the_template() -> None:
    assert {one.name: format_of_template(one.source()) for one in PUBLISHED} == {
        "qwen2.5": "hermes",
        "qwen3": "hermes",
        "llama3.1": "llama",
    }


A = ToolCall("a", {})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>\nTwo.\n</think>\n\n46", ParsedTurn("Two.", "46", ())),
        ("Two.</think>46", ParsedTurn("Two.", "46", ())),  # the template itself began the thoughts
        ("<think>Two", ParsedTurn("Two", "", ())),
        (
            'I add. <tool_call>{"name": "a", "arguments": {}}</tool_call>',
            ParsedTurn("", "I add.", (ToolCall("a", {}),)),
        ),
        ("46", ParsedTurn("", "46", ())),
        (
            '<tool_call>{"name": "a"</tool_call> or <tool_call>{"name": "a", "arguments": {}}</tool_call>',
            ParsedTurn("", '<tool_call>{"name": "a"</tool_call> or', (ToolCall("a", {}),)),  # the first one has no end
        ),
    ],
)
def test_thoughts_calls_and_the_rest_are_told_apart(text: str, parts: ParsedTurn) -> None:
    assert parse_turn(text, "hermes") == parts


def test_a_call_in_the_format_of_llama_is_the_whole_turn() -> None:
    assert parse_turn('{"name": "a", "parameters": {}}', "llama") == ParsedTurn("", "", (ToolCall("a", {}),))


@pytest.mark.parametrize("role", ["system", "user"])
@pytest.mark.parametrize("tools", [[], [ADD]], ids=["plain", "tools"])
def test_rules_and_what_an_agent_is_shown_are_one_rendering(
    published: Published, tokenizer: HubTokenizer, role: str, tools: list[Any]
) -> None:
    rules: list[Message] = [{"role": role, "content": "Two agents add numbers in turn."}]
    if published.name == "llama3.1" and not published.arguments and tools and role == "system":
        with pytest.raises(TaskError):  # it defines tools in the first user message, and there is none
            tokenizer.encode_rules(rules, tools)
        return
    before = tokenizer.encode_rules(rules, tools)
    together = [*before, *tokenizer.encode_shown(rules, [QUESTION], tools)]
    assert together == tokenizer.encode_chat([*rules, QUESTION], tools)


def test_rules_that_a_template_changes_are_refused(tmp_path: Path) -> None:
    template = "{{ messages | length }}{% for one in messages %}{{ one.content }}{% endfor %}"
    tokenizer = HubTokenizer(tokenizer_folder(tmp_path / "hub", chat_template=template))
    with pytest.raises(TaskError, match="changes the rules"):
        tokenizer.encode_shown([QUESTION], [QUESTION])
