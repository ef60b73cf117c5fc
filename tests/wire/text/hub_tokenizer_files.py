"""Write a byte-level tokenizer in the form of published ones, small enough for a test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.wire.text.test_chat_template import TEMPLATE

SPECIAL = ("<|user|>", "<|assistant|>", "<|end|>", "<|stop|>")


def tokenizer_folder(
    folder: Path,
    *,
    special: Sequence[str] = SPECIAL,
    ends: Sequence[str] = ("<|end|>", "<|stop|>"),
    vocab_size: int | None = 320,
    **settings: Any,
) -> Path:
    """Write a tokenizer.json with 256 bytes, one merge and the special tokens, and the small files around it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate([*alphabet, "12"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("1", "2")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    given = {"eos_token": "<|end|>", "chat_template": TEMPLATE} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(given))
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [257 + special.index(end) for end in ends]})
    )
    if vocab_size is not None:
        (folder / "config.json").write_text(json.dumps({"vocab_size": vocab_size, "eos_token_id": 259}))
    return folder
