"""Find the wording that a task's prompts share, so that it costs one token instead of many."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

PIECES_MAX = 64  # a vocabulary of a few dozen entries keeps the embedding small
WORD_CHARACTERS_MIN = 3  # shorter words gain little over characters
COMMON_SHARE = 0.5  # a word in half of the prompts belongs to the wording, not to the problem

_WORD = re.compile(rf"[^\W\d_]{{{WORD_CHARACTERS_MIN},}}")


def fixed_pieces(prompts: Sequence[str]) -> tuple[str, ...]:
    """Return the prompts' common beginning, common end, and the words between that at least half of them use."""
    if len(prompts) < 2:
        return ()
    start = _common_start(prompts)
    rests = [prompt[len(start) :] for prompt in prompts]
    end = _common_start([rest[::-1] for rest in rests])[::-1]
    middles = [rest[: len(rest) - len(end)] for rest in rests]
    users = Counter(word for middle in middles for word in set(_WORD.findall(middle)))
    words = [word for word, count in users.most_common() if count >= COMMON_SHARE * len(prompts)]
    pieces = [piece for piece in (start, end) if len(piece) > 1] + sorted(words)
    return tuple(dict.fromkeys(pieces))[:PIECES_MAX]


def other_characters(pieces: Sequence[str], texts: Iterable[str]) -> str:
    """Return the characters of ``texts`` that no piece covers (longest piece first), sorted."""
    longest_first = sorted(pieces, key=len, reverse=True)
    covered = re.compile("|".join(re.escape(piece) for piece in longest_first)) if pieces else None
    found: set[str] = set()
    for text in texts:
        found.update(covered.sub("", text) if covered else text)
    return "".join(sorted(found))


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    length = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), None)
    return first if length is None else first[:length]
