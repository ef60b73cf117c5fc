"""Load the chat templates in ``templates/``, and small tokenizers with their special tokens.

They are the ``chat_template`` of tokenizer_config.json as published on the Hugging Face Hub: qwen2.5 of
Qwen/Qwen2.5-7B-Instruct and qwen3 of Qwen/Qwen3-4B (Apache 2.0), llama3.1 of meta-llama/Llama-3.1-8B-Instruct, whose
format the page "Llama 3.1 model cards and prompt formats" of llama.com describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcast.wire.text.chat_template import ChatTemplate
from rollcast.wire.text.hub_tokenizer import ChatSettings, HubTokenizer
from tests.wire.text.hub_tokenizer_files import tokenizer_folder

FOLDER = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Published:
    """A template, and what its models' tokenizers have."""

    name: str
    special: tuple[str, ...]  # special tokens, in the order of their ids
    ends: tuple[str, ...]  # end a completion, as in generation_config.json; the first is eos_token
    bos: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def source(self) -> str:
        return (FOLDER / f"{self.name}.jinja").read_text().removesuffix("\n")

    def template(self) -> ChatTemplate:
        return ChatTemplate(self.source(), {"bos_token": self.bos, **self.arguments})

    def tokenizer(self, folder: Path) -> HubTokenizer:
        """Write a byte-level tokenizer with the special tokens into the folder, and load it."""
        made = tokenizer_folder(
            folder,
            special=self.special,
            ends=self.ends,
            vocab_size=None,
            eos_token=self.ends[0],
            bos_token=self.bos,
            chat_template=self.source(),
        )
        return HubTokenizer(made, ChatSettings(arguments=self.arguments))


_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_ENDS = ("<|im_end|>", "<|endoftext|>")
_LLAMA = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>"),
)
PUBLISHED = (
    Published("qwen2.5", _QWEN, _QWEN_ENDS),
    Published("qwen3", _QWEN, _QWEN_ENDS),
    Published("qwen3", _QWEN, _QWEN_ENDS, arguments={"enable_thinking": False}),
    Published("llama3.1", _LLAMA, ("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"), bos="<|begin_of_text|>"),
    Published(
        "llama3.1",
        _LLAMA,
        ("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"),
        bos="<|begin_of_text|>",
        arguments={"tools_in_user_message": False},
    ),
)
