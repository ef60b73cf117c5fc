"""Read the examples of supervised training from a file, as token ids with the tokens that are trained on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import structlog

from learner.supervised.config import DataConfig, SftConfig
from learner.training.packing import Example
from rollcast.runtime.errors import TaskError
from rollcast.wire.text.data_files import COLUMNS_SHOWN, BadRow, jsonl_rows, parquet_rows
from rollcast.wire.text.hub_tokenizer import HubTokenizer
from rollcast.wire.text.supervised import Pieces, pieces_of_chat, pieces_of_completion
from rollcast.wire.text.tokenizer import TextTokenizer, Tokenizer

_NAMED = 5  # unusable rows that are named
_CHARACTERS_MAX = 5000  # of a tokenizer that is made of the file
_SETTING, _COLUMNS_SETTING = "data.path", "data.messages, data.prompt or data.completion"

_log = structlog.get_logger()


@dataclass(slots=True)
class Examples:
    """All examples of a file in order, and the rows that could not be used."""

    all: list[Example] = field(default_factory=list)
    rows: int = 0  # rows of the file
    bad: Counter[str] = field(default_factory=Counter)  # unusable rows by reason
    named: list[str] = field(default_factory=list)  # the first unusable rows, with file, place and reason

    def digest(self) -> str:
        """Return a hash of the tokens and of what is trained on, which determines all losses."""
        found = hashlib.sha256()
        for example in self.all:
            found.update(len(example).to_bytes(8, "little") + example.token_ids.tobytes() + example.trained.tobytes())
        return found.hexdigest()


def read_tokenizer(config: SftConfig) -> TextTokenizer:
    """Return the tokenizer that the configuration names, or one with a token for each character of the file.

    Raises:
        ModelError, MissingExtra: a published tokenizer cannot be used.
        TaskError: the file cannot be read, or has too many characters.
    """
    folder = config.model_folder
    if folder is not None:
        return HubTokenizer(folder)
    characters: set[str] = set()
    for _, value in _rows(config.data):
        if isinstance(value, Mapping):
            for name in (config.data.prompt, config.data.completion):
                characters.update(str(value.get(name) or ""))
        if len(characters) > _CHARACTERS_MAX:
            raise TaskError(
                f"{config.data.path} has more than {_CHARACTERS_MAX} different characters",
                cause="without a tokenizer each of them is a token",
                fix="set tokenizer or init_from to the folder of a published model",
            )
    return Tokenizer((), "".join(sorted(characters)))


def read_examples(config: SftConfig, tokenizer: TextTokenizer) -> Examples:
    """Read and tokenize every row of the file; unusable ones are counted, and the first of them logged.

    Raises:
        TaskError: the file cannot be read, has no usable row, or too many that are not.
        MissingExtra: pyarrow is needed and not installed.
    """
    found = Examples()
    for where, value in _rows(config.data):
        found.rows += 1
        try:
            found.all += _examples_of(config, tokenizer, where, value)
        except BadRow as bad:
            reason = str(bad).removeprefix(f"{where}: ")
            found.bad[reason] += 1
            if len(found.named) < _NAMED:
                found.named.append(f"{bad}{f' ({bad.cause})' if bad.cause else ''}"[:400])
    _check(config.data, found)
    for line in found.named:
        _log.warning("row left out", row=line)
    return found


def _check(config: DataConfig, found: Examples) -> None:
    bad = sum(found.bad.values())
    if found.all and bad <= config.bad_rows_share_max * found.rows:
        return
    reasons = "; ".join(f"{count} x {reason}" for reason, count in found.bad.most_common(_NAMED))
    first = f", the first is {found.named[0]}" if found.named else ""
    raise TaskError(
        f"{bad} of {found.rows} rows of {config.path} cannot be used{first}",
        cause=reasons[:600] or "the file has no rows",
        fix=f"correct them, or {_COLUMNS_SETTING}, or raise data.bad_rows_share_max = {config.bad_rows_share_max:g}",
    )


def _rows(config: DataConfig) -> Iterator[tuple[str, Any]]:
    if config.path.suffix != ".parquet" and not config.path.is_dir():
        return jsonl_rows(config.path, setting=_SETTING)
    columns = {config.messages, config.prompt, config.completion}
    return parquet_rows(config.path, columns, setting=_SETTING, columns_setting=_COLUMNS_SETTING, may_lack=True)


def _examples_of(config: SftConfig, tokenizer: TextTokenizer, where: str, value: Any) -> list[Example]:
    """Return the examples of a row.

    Raises:
        BadRow: it cannot be used.
    """
    if isinstance(value, BadRow):
        raise value
    try:
        sequences = _pieces_of(config.data, tokenizer, where, value)
    except TaskError as error:
        raise BadRow(where, error.what, error.cause) from None
    examples = [_example(pieces) for pieces in sequences]
    for example in examples:
        if len(example) > config.row_tokens:
            why = f"it has more tokens than row_tokens = {config.row_tokens}"
            raise BadRow(where, why, f"{len(example)} tokens")
    return examples


def _pieces_of(config: DataConfig, tokenizer: TextTokenizer, where: str, value: Any) -> list[Pieces]:
    if not isinstance(value, Mapping):
        raise BadRow(where, "not an object")
    if value.get(config.messages) is not None:
        if not isinstance(tokenizer, HubTokenizer):
            raise BadRow(where, "a chat needs a model with a chat template", "set tokenizer or init_from")
        return pieces_of_chat(tokenizer, value[config.messages])
    texts = []
    for name in (config.prompt, config.completion):
        text = value.get(name)
        if not isinstance(text, str) or not text:
            columns = ", ".join(sorted(map(str, value))[:COLUMNS_SHOWN])
            raise BadRow(where, f"{name!r} is missing or not a text", f"the row has {columns or 'no columns'}")
        texts.append(text)
    return [pieces_of_completion(tokenizer, *texts)]


def _example(pieces: Pieces) -> Example:
    token_ids = np.array([one for piece in pieces for one in piece.token_ids], np.int32)
    trained = np.repeat([piece.trained for piece in pieces], [len(piece.token_ids) for piece in pieces])
    return Example(token_ids, trained)
