"""Test which tokens of chats and completions are trained on, with templates of published models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollcast.runtime.errors import TaskError
from rollcast.wire.text.hub_tokenizer import ChatSettings, HubTokenizer
from rollcast.wire.text.supervised import Pieces, pieces_of_chat, pieces_of_completion
from tests.wire.text.hub_tokenizer_files import tokenizer_folder
from tests.wire.text.published_templates import PUBLISHED, Published

CHAT = [
    {"role": "system", "content": "Add."},
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "4"},
]
# As Qwen3's: the reasoning of earlier turns is left out, and the answer that ends the chat is rendered with some.
FORGETFUL = """{%- for message in messages %}
    {{- '<|' + ('user' if message.role == 'user' else 'assistant') + '|>' }}
    {%- if message.role == 'assistant' and loop.last %}{{- '(think)' }}{%- endif %}
    {{- message.content + '<|end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> HubTokenizer:
    return HubTokenizer(tokenizer_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> HubTokenizer:
    return HubTokenizer(tokenizer_folder(tmp_path_factory.mktemp("forgetful"), chat_template=FORGETFUL))


def texts(tokenizer: HubTokenizer, pieces: Pieces) -> list[tuple[str, bool]]:
    """Return each piece's text, with its special tokens, and whether it is trained on."""
    decode: Any = tokenizer._tokenizer.decode
    return [(decode(list(piece.token_ids), skip_special_tokens=False), piece.trained) for piece in pieces]


def test_every_answer_of_a_chat_is_trained_on_with_the_token_that_ends_it(tokenizer: HubTokenizer) -> None:
    (pieces,) = pieces_of_chat(tokenizer, CHAT)
    rest = [(text, trained) for text, trained in texts(tokenizer, pieces) if text]
    assert rest == [
        ("<|system|>Add.<|end|><|user|>1+1<|end|><|assistant|>", False),
        ("2<|end|>", True),
        ("<|user|>2+2<|end|><|assistant|>", False),
        ("4<|end|>", True),
    ]
    before = tokenizer.encode_rendered(tokenizer.render(CHAT[:2], answer_begins=True))
    assert list(pieces[0].token_ids) == before


def test_answers_are_trained_after_what_a_rollout_has_before_them(forgetful: HubTokenizer) -> None:
    first, second = pieces_of_chat(forgetful, CHAT)
    assert texts(forgetful, first)[-1] == ("(think)2<|end|>", True)
    prompt, answer = texts(forgetful, second)
    assert prompt == (
        "<|assistant|>Add.<|end|>\n<|user|>1+1<|end|>\n<|assistant|>2<|end|>\n<|user|>2+2<|end|>\n<|assistant|>",
        False,
    )
    assert answer == ("(think)4<|end|>", True)


def test_a_completion_is_the_tokens_of_a_rollout(tokenizer: HubTokenizer) -> None:
    prompt, answer = pieces_of_completion(tokenizer, "1+1", "12")
    assert list(prompt.token_ids) == tokenizer.encode_prompt("1+1")
    assert answer.token_ids == (*tokenizer.encode("12"), tokenizer.eos_id)
    assert (prompt.trained, answer.trained) == (False, True)


@pytest.mark.parametrize("published", PUBLISHED, ids=str)
def test_published_templates_train_each_answer_and_nothing_else(published: Published, tmp_path: Path) -> None:
    tokenizer = published.tokenizer(tmp_path)
    trained = []
    for pieces in pieces_of_chat(tokenizer, CHAT):
        trained += [tokenizer.decode(piece.token_ids).strip() for piece in pieces if piece.trained]
        assert all(piece.token_ids[-1] in tokenizer.stop_ids for piece in pieces if piece.trained)
        *_, last = (number for number, message in enumerate(CHAT) if message["role"] == "assistant")
    whole = [one for piece in pieces for one in piece.token_ids]
    before = tokenizer.encode_rendered(tokenizer.render(CHAT[:last], answer_begins=True))
    assert whole[: len(before)] == before
    assert [text.rpartition("\n")[2] for text in trained] == ["2", "4"]


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ("hello", "no list"),
        ([{"role": "user", "content": "a"}], "no list of 2"),
        ([{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}], "message 2 has none of the roles"),
        ([{"role": "user", "content": 1}, {"role": "assistant", "content": "b"}], "content of message 1 is no text"),
        ([{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}], "begins with an answer"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "has no answer"),
        ([{"role": "user", "content": "a<|end|>"}, {"role": "assistant", "content": "b"}], "special token"),
    ],
)
def test_malformed_chats_are_refused(tokenizer: HubTokenizer, messages: Any, what: str) -> None:
    with pytest.raises(TaskError, match=what):
        pieces_of_chat(tokenizer, messages)


def test_templates_that_cannot_be_trained_with_are_refused(tmp_path: Path) -> None:
    endless = HubTokenizer(tokenizer_folder(tmp_path / "endless", chat_template="{{ messages[-1].content }}"))
    with pytest.raises(TaskError, match="otherwise than the prompt"):
        pieces_of_chat(endless, CHAT)
    open_ended = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(TaskError, match="no token that ends an answer"):
        pieces_of_chat(HubTokenizer(tokenizer_folder(tmp_path / "open", chat_template=open_ended)), CHAT)
    plain = HubTokenizer(tokenizer_folder(tmp_path / "plain"), ChatSettings(enabled=False))
    with pytest.raises(TaskError, match="no chat template"):
        pieces_of_chat(plain, CHAT)
