"""Where a completion's text first holds one of the strings that end it. Plain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollcast.wire.rollouts import Sampling

#: Token ids to text, the run's tokenizer's: text of a part of a completion is a part of its text, its ends apart.
Decode = Callable[[Sequence[int]], str]

# Tokens that a text's first character may need before it: it has up to 4 bytes, and each token at least one.
_BYTES_OF_A_CHARACTER = 4


class StopStrings:
    """Looks at new tokens as they come, and at no more before them than a string may reach back."""

    def __init__(self, strings: Sequence[str], decode: Decode) -> None:
        """
        Raises:
            ValueError: a string is empty.
        """
        if not all(strings):
            raise ValueError("a stop string is empty")
        self._strings = tuple(strings)
        self._decode = decode
        self._reach = max((len(text.encode()) for text in strings), default=0) + _BYTES_OF_A_CHARACTER

    def end(self, drawn: Sequence[int], known: int) -> int | None:
        """Tokens up to the first that completes a string, if one does; the first ``known`` tokens complete none.

        However the tokens come in, the same token is found: it is the first with which the text holds a string.
        """
        start = max(0, known - self._reach)
        if not self._strings or known >= len(drawn) or not self._held(drawn[start:]):
            return None
        few, many = known, len(drawn)  # held by ``many`` tokens and not by ``few``
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (few, middle) if self._held(drawn[start:middle]) else (middle, many)
        return many

    def cut(self, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens up to their end by text; all of them where there is none."""
        return tokens[: self.end(tokens, 0)]

    def _held(self, tokens: Sequence[int]) -> bool:
        text = self._decode(tokens)
        return any(one in text for one in self._strings)


def stop_strings(sampling: Sampling, decode: Decode | None) -> StopStrings | None:
    """What ends completions of this sampling by their text; None: nothing does.

    Raises:
        ValueError: there are stop strings and no tokenizer.
    """
    if not sampling.stop_strings:
        return None
    if decode is None:
        raise ValueError("stop strings need the run's tokenizer")
    return StopStrings(sampling.stop_strings, decode)
