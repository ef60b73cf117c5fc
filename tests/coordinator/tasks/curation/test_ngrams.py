from __future__ import annotations

from coordinator.tasks.curation.ngrams import gram_hashes, words_of


def test_case_spacing_and_marks_make_no_difference_and_signs_do() -> None:
    assert words_of("What is  12 + 7?") == words_of("what IS 12 + 7") == ["what", "is", "12", "+", "7"]
    assert words_of("1+1=") != words_of("1-1=")
    assert words_of("ﬁve") == ["five"]
    assert words_of("?!") == ["?!"]


def test_runs_of_words() -> None:
    assert len(gram_hashes(list("abcde"), 3)) == 3
    assert gram_hashes(list("ab"), 3) == gram_hashes(list("ab"), 2)
    assert gram_hashes(list("abcab"), 2) == gram_hashes(list("abca"), 2)
