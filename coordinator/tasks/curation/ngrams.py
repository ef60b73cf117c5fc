"""Split texts into words and word n-grams, hashed.

Case, spacing and punctuation make no difference; digits and every other sign do, so that 1+1 is not 1-1.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from blake3 import blake3

_WORD = re.compile(r"[^\W_]+|[^\w\s,.;:!?'\"`]")


def words_of(text: str) -> list[str]:
    """Return the words of a text, with compatibility characters unified (NFKC) and case folded."""
    words = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return words or [text.strip()]


def hash64(text: str) -> int:
    """Return 64 bits of BLAKE3."""
    return int.from_bytes(blake3(text.encode("utf-8", "surrogatepass")).digest(length=8), "little")


def gram_hashes(words: Sequence[str], length: int) -> set[int]:
    """Return hashes of every run of ``length`` words; if there are fewer words, one hash of all."""
    if len(words) <= length:
        return {hash64(" ".join(words))}
    return {hash64(" ".join(words[start : start + length])) for start in range(len(words) - length + 1)}
