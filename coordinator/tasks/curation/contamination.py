"""Find prompts that contain problems of evaluation sets, by the share of n-grams that they have in common.

N-grams that many problems of the sets share are their common wording and are ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from coordinator.tasks.curation.ngrams import gram_hashes, words_of

WORDS_LEAST = 5  # an evaluation problem with fewer words must be the whole prompt; others are searched inside texts
COMMON_ITEMS = 3  # an n-gram of more problems than this, and than COMMON_SHARE of all, is wording, not a problem
COMMON_SHARE = 0.02
PROMPT_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Overlap:
    """The evaluation problem that a prompt overlaps with most, and the share of n-grams of the shorter of the two."""

    set: str
    problem: str
    share: float


@dataclass(frozen=True, slots=True)
class _Item:
    set: str
    prompt: str
    grams: int  # number of n-grams that are not common wording


class EvaluationTexts:
    """Problems that must not be trained on.

    Args:
        sets: prompts by name of the set.
        length: words per n-gram.
    """

    def __init__(self, sets: Iterable[tuple[str, Iterable[str]]], length: int) -> None:
        self._length = length
        self._items: list[_Item] = []
        self._by_gram: dict[int, list[int]] = {}
        self._whole: dict[int, int] = {}
        self._wording: frozenset[int] = frozenset()
        self._short_lengths: set[int] = set()
        for name, prompts in sets:
            for prompt in prompts:
                self._add(name, prompt)
        self._drop_wording()

    def __len__(self) -> int:
        return len(self._items)

    def overlap(self, words: list[str]) -> Overlap | None:
        """Return the problem that these words overlap with most; None if there is none."""
        (whole,) = gram_hashes(words, len(words))
        if whole in self._whole:
            item = self._items[self._whole[whole]]
            return Overlap(item.set, item.prompt, 1.0)
        grams = gram_hashes(words, self._length)
        for length in self._short_lengths:
            if length < len(words):
                grams = grams | gram_hashes(words, length)
        grams = grams - self._wording
        hits = Counter(number for gram in grams for number in self._by_gram.get(gram, ()))
        best: Overlap | None = None
        for number, count in sorted(hits.items()):
            item = self._items[number]
            share = min(1.0, count / min(item.grams, len(grams)))
            if best is None or share > best.share:
                best = Overlap(item.set, item.prompt, share)
        return best

    def _add(self, name: str, prompt: str) -> None:
        words, number = words_of(prompt), len(self._items)
        (whole,) = gram_hashes(words, len(words))
        self._whole.setdefault(whole, number)
        grams = gram_hashes(words, self._length) if len(words) >= WORDS_LEAST else set()
        if WORDS_LEAST <= len(words) < self._length:
            self._short_lengths.add(len(words))
        for gram in grams:
            self._by_gram.setdefault(gram, []).append(number)
        self._items.append(_Item(name, prompt[:PROMPT_SHOWN], len(grams)))

    def _drop_wording(self) -> None:
        """Ignore n-grams that many problems share: "Solve the following equation" contaminates nothing."""
        most = max(COMMON_ITEMS, COMMON_SHARE * len(self._items))
        common = {gram for gram, numbers in self._by_gram.items() if len(numbers) > most}
        lost = Counter(number for gram in common for number in self._by_gram.pop(gram))
        self._items = [replace(item, grams=item.grams - lost[number]) for number, item in enumerate(self._items)]
        self._wording = frozenset(common)
