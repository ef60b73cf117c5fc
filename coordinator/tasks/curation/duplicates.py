"""Find prompts that repeat an earlier one: the same words, or nearly the same."""

from __future__ import annotations

from array import array
from typing import Any, Literal

import numpy as np

from coordinator.tasks.curation.ngrams import gram_hashes, hash64

SHINGLE_WORDS = 3
PERMUTATIONS = 32
BAND_ROWS = 4  # 8 bands: prompts of similarity 0.8 meet in some band with probability 0.98

Repeated = Literal["exact_duplicate", "contradiction", ""]


class ExactDuplicates:
    """Prompts seen so far with their answers, in 16 bytes each plus the overhead of Python's dict."""

    def __init__(self) -> None:
        self._answers: dict[int, int] = {}
        self._seen = 0

    def find_or_add(self, words: list[str], answer: str) -> Repeated:
        """Return whether these words were seen before, with the same answer or another; add them to those seen."""
        key, value = hash64(" ".join(words)), hash64(answer)
        before = self._answers.setdefault(key, value)
        if len(self._answers) != self._seen:
            self._seen = len(self._answers)
            return ""
        return "exact_duplicate" if before == value else "contradiction"


class NearDuplicates:
    """MinHash signatures of the prompts kept so far, found again by bands (Broder 1997; Leskovec et al., chapter 3).

    Prompts with other numbers are other problems, however alike their wording. Each kept prompt takes about a kilobyte.

    Args:
        similarity: estimated Jaccard similarity of word shingles, from which on a prompt counts as a duplicate.
    """

    def __init__(self, similarity: float) -> None:
        self._similarity = similarity
        draws = [hash64(f"rollcast/minhash/{number}") for number in range(2 * PERMUTATIONS)]
        self._factors = np.array(draws[:PERMUTATIONS], np.uint64) | np.uint64(1)
        self._terms = np.array(draws[PERMUTATIONS:], np.uint64)
        self._signatures = array("Q")
        self._numbers = array("Q")
        self._bands: dict[int, int] = {}

    def similar(self, words: list[str]) -> float:
        """Return the similarity to the most similar prompt seen that shares a band, if it is a duplicate.

        Otherwise return 0 and add the prompt to those seen. The first prompt of a band stays its representative.
        """
        signature, numbers = self._signature(words), hash64(" ".join(sorted(filter(str.isdigit, words))))
        keys = self._band_keys(signature)
        candidates = {self._bands[key ^ numbers] for key in keys if key ^ numbers in self._bands}
        same = [one for one in sorted(candidates) if self._numbers[one] == numbers]
        nearest = max((self._estimate(signature, one) for one in same), default=0.0)
        if nearest >= self._similarity:
            return nearest
        self._signatures.extend(signature.tolist())
        self._numbers.append(numbers)
        for key in keys:
            self._bands.setdefault(key ^ numbers, len(self._numbers) - 1)
        return 0.0

    def _signature(self, words: list[str]) -> np.ndarray[Any, np.dtype[np.uint64]]:
        grams = np.fromiter(gram_hashes(words, SHINGLE_WORDS), np.uint64)
        with np.errstate(over="ignore"):
            mixed = grams[:, None] * self._factors[None, :] + self._terms[None, :]
            mixed ^= mixed >> np.uint64(29)
            signature: np.ndarray[Any, np.dtype[np.uint64]] = (mixed * self._factors[None, :]).min(axis=0)
        return signature

    def _band_keys(self, signature: np.ndarray[Any, np.dtype[np.uint64]]) -> list[int]:
        """Return one key per band. Bands that share a key by chance are distinguished by their signatures."""
        with np.errstate(over="ignore"):
            keys: list[int] = (signature * self._factors).reshape(-1, BAND_ROWS).sum(axis=1).tolist()
        return keys

    def _estimate(self, signature: np.ndarray[Any, np.dtype[np.uint64]], number: int) -> float:
        start = number * PERMUTATIONS
        other = np.frombuffer(self._signatures, np.uint64, PERMUTATIONS, start * 8)
        return float((signature == other).mean())
