"""Choose the run's tokenizer: a published model's, or a small one built from the task's wording."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.config.config import TokenizerConfig
from rollcast.runtime.errors import ConfigError, TaskError
from rollcast.wire.text.hub_tokenizer import ChatSettings, HubTokenizer
from rollcast.wire.text.tokenizer import TextTokenizer, Tokenizer


def run_tokenizer(config: TokenizerConfig, small: Callable[[], Tokenizer]) -> TextTokenizer:
    """Return the tokenizer that the configuration names; ``small`` makes one if it names none.

    Raises:
        ModelError: the model's tokenizer cannot be used.
        MissingExtra: its library is not installed.
    """
    if config.folder is None:
        return small()
    return HubTokenizer(config.folder, ChatSettings(config.chat_template, config.system_prompt, config.arguments))


def stored_tokenizer(config: TokenizerConfig, kept_json: str) -> TextTokenizer:
    """Return the tokenizer of a resumed run, from what its ledger kept.

    Raises:
        TaskError: the configuration names another one.
        ModelError, MissingExtra: see run_tokenizer.
    """
    tokenizer = run_tokenizer(config, lambda: Tokenizer.from_json(kept_json))
    if tokenizer.to_json() != kept_json:
        raise TaskError(
            "the tokenizer differs from the one at the run's start",
            cause=f"tokenizer.json, the chat template or its settings in {config.folder} have changed",
            fix="restore coordinator.tokenizer and the files in its folder, or choose another run_folder",
        )
    return tokenizer


def check_stop_strings(tokenizer: TextTokenizer, strings: Sequence[str]) -> None:
    """Check that completions can hold each stop string.

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
