"""The run's tokenizer: that of a published model, or a small one made of the task's own wording."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.config.config import TokenizerConfig
from rollcast.runtime.errors import ConfigError, TaskError
from rollcast.wire.text.hub_tokenizer import ChatSettings, HubTokenizer
from rollcast.wire.text.tokenizer import TextTokenizer, Tokenizer


def run_tokenizer(config: TokenizerConfig, small: Callable[[], Tokenizer]) -> TextTokenizer:
    """The tokenizer that the configuration names; ``small`` makes one where it names none.

    Raises:
        ModelError: the model's tokenizer cannot be used.
        MissingExtra: its library is not installed.
    """
    if config.folder is None:
        return small()
    return HubTokenizer(config.folder, ChatSettings(config.chat_template, config.system_prompt, config.arguments))


def kept_tokenizer(config: TokenizerConfig, kept_json: str) -> TextTokenizer:
    """The tokenizer of a run that is taken up again, from what its ledger kept.

    Raises:
        TaskError: the configuration names another one.
        ModelError, MissingExtra: see run_tokenizer.
    """
    tokenizer = run_tokenizer(config, lambda: Tokenizer.from_json(kept_json))
    if tokenizer.to_json() != kept_json:
        raise TaskError(
            "the tokenizer is not the one that the run began with",
            cause=f"tokenizer.json, the chat template or its settings in {config.folder} have changed",
            fix="restore coordinator.tokenizer and the files in its folder, or choose another run_folder",
        )
    return tokenizer


def check_stop_strings(tokenizer: TextTokenizer, strings: Sequence[str]) -> None:
    """That completions can hold each of them.

    Raises:
        ConfigError: one has a character that the task's own tokenizer lacks.
    """
    for text in strings if isinstance(tokenizer, Tokenizer) else ():
        try:
            tokenizer.encode(text)
        except TaskError as error:
            raise ConfigError(
                f"no completion can hold the stop string {text!r}",
                cause=error.what,
                fix="correct sampling.stop_strings, or use a published model's tokenizer",
            ) from None
