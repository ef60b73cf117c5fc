"""Find where a completion's text first holds one of the strings that end it. This module is pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollcast.wire.rollouts import Sampling

#: Token ids to text, the run's tokenizer's: text of a part of a completion is a part of its text, its ends apart.
Decode = Callable[[Sequence[int]], str]

# Tokens that a text's first character may need before it: it has up to 4 bytes, and each token at least one.
_BYTES_OF_A_CHARACTER = 4


class StopStrings:
    """A finder that checks new tokens as they arrive, with only as many earlier ones as a string may reach back."""

    def __init__(self, strings: Sequence[str], decode: Decode, first: int = 0) -> None:
        """
        Args:
            first: tokens at the beginning that belong to earlier turns of an episode, in which nothing is sought.

        Raises:
            ValueError: a string is empty.
        """
        if not all(strings):
            raise ValueError("a stop string is empty")
        self.strings = tuple(strings)
        self._decode = decode
        self._first = first
        self._reach = max((len(text.encode()) for text in strings), default=0) + _BYTES_OF_A_CHARACTER

    def end(self, generated: Sequence[int], known: int) -> int | None:
        """Return the number of tokens up to the first that completes a string; None if no token does.

        The first ``known`` tokens complete none. The result does not depend on how the tokens are split over calls.
        """
        start = max(self._first, known - self._reach)
        if not self.strings or known >= len(generated) or not self._held(generated[start:]):
            return None
        few, many = known, len(generated)  # held by ``many`` tokens and not by ``few``
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (few, middle) if self._held(generated[start:middle]) else (middle, many)
        return many

    def cut(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens up to the one that completes a string; all tokens if none does."""
        return tokens[: self.end(tokens, 0)]

    def _held(self, tokens: Sequence[int]) -> bool:
        text = self._decode(tokens)
        return any(one in text for one in self.strings)


def stop_strings(sampling: Sampling, decode: Decode | None, first: int = 0) -> StopStrings | None:
    """Return the finder of a sampling's stop strings after the ``first`` tokens; None if the sampling has none.

    Raises:
        ValueError: there are stop strings and no tokenizer.
    """
    if not sampling.stop_strings:
        return None
    if decode is None:
        raise ValueError("stop strings need the run's tokenizer")
    return StopStrings(sampling.stop_strings, decode, first)
