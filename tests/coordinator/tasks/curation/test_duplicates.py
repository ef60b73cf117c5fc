"""Test the search for repeated rows: normalised text, n-grams, duplicates, and overlap with evaluation sets."""

from __future__ import annotations

from random import Random

import pytest

from coordinator.tasks.curation.contamination import EvaluationTexts, Overlap
from coordinator.tasks.curation.duplicates import ExactDuplicates, NearDuplicates
from coordinator.tasks.curation.ngrams import gram_hashes, words_of
from coordinator.tasks.curation.normalise import normalise_answer

TRAIN = "A train leaves at noon and travels 60 miles an hour for three hours before it stops"

EVALUATION = [("trains", [TRAIN]), ("short", ["12+7=", "What is the capital of France?"])]


@pytest.fixture(scope="module")
def texts() -> EvaluationTexts:
    return EvaluationTexts(EVALUATION, 8)


def found(texts: EvaluationTexts, prompt: str) -> Overlap | None:
    return texts.overlap(words_of(prompt))


def test_the_problem_itself_and_texts_around_it(texts: EvaluationTexts) -> None:
    assert found(texts, TRAIN.upper() + ".") == Overlap("trains", TRAIN, 1.0)
    inside = found(texts, f"Read this with care and answer in a single word. {TRAIN}. How far did it come?")
    assert inside is not None
    assert (inside.set, inside.share) == ("trains", 1.0)


def test_partial_overlap_is_measured(texts: EvaluationTexts) -> None:
    half = found(texts, " ".join(TRAIN.split()[:12]) + " while somebody else walks home through the park slowly")
    assert half is not None
    assert 0.4 < half.share < 0.7
    assert found(texts, "A train leaves at noon, and nothing else is the same in this problem at all") is None


def test_short_problems_are_found_whole_or_inside_if_they_say_enough(texts: EvaluationTexts) -> None:
    assert found(texts, "12 + 7 =") == Overlap("short", "12+7=", 1.0)
    assert found(texts, "Add these: 12 + 7 = what you get when you put them together") is None
    inside = found(texts, "Somebody asks you: what is the capital of France? Answer him politely.")
    assert inside is not None
    assert inside.set == "short"
    assert len(texts) == 3


def test_common_wording_contaminates_nothing() -> None:
    worded = "State the final answer to the following arithmetic problem and nothing else: {} plus {}".format
    texts = EvaluationTexts([("sums", [worded(n, n + 1) for n in range(20)])], 8)
    assert found(texts, worded(3, 4)) == Overlap("sums", worded(3, 4), 1.0)
    other = found(texts, worded(70, 80))
    assert other is None or other.share < 0.5


def test_the_same_words_with_the_same_or_another_answer() -> None:
    seen = ExactDuplicates()
    assert seen.find_or_add(["a", "b"], "1") == ""
    assert seen.find_or_add(["a", "b"], "1") == "exact_duplicate"
    assert seen.find_or_add(["a", "b"], "2") == "contradiction"
    assert seen.find_or_add(["a"], "1") == ""


def test_nearly_the_same_words_are_found_among_many() -> None:
    random = Random(1)
    texts = [[f"w{random.randrange(3000)}" for _ in range(60)] for _ in range(300)]
    near = NearDuplicates(0.8)
    assert all(near.similar(text) == 0.0 for text in texts)
    changed = [[*text[:59], "other"] for text in texts]
    assert sum(near.similar(text) >= 0.8 for text in changed) > 290
    halves = [text[:30] + [f"v{random.randrange(3000)}" for _ in range(30)] for text in texts]
    assert sum(near.similar(text) > 0.0 for text in halves) < 3


def test_other_numbers_are_other_problems() -> None:
    near = NearDuplicates(0.5)
    words = "a farmer has {} cows and buys {} more at the market in the town by the river".format
    assert near.similar(words(3, 4).split()) == 0.0
    assert near.similar(words(3, 5).split()) == 0.0
    assert near.similar([*words(3, 5).split(), "today"]) > 0.5
    assert near.similar(["today", *words(3, 4).split()]) > 0.5


def test_signatures_are_the_same_in_every_process() -> None:
    near = NearDuplicates(0.5)
    assert (
        near._signature(["a", "b", "c", "d"])[:2].tolist() == NearDuplicates(0.9)._signature(list("abcd"))[:2].tolist()
    )


@pytest.mark.parametrize(
    ("text", "answer", "done"),
    [
        ("42", "42", ()),
        ("She has 3 + 4 = 7.\n#### 7", "7", ("final_line",)),
        (r"so $\boxed{\frac{1}{2}}$", r"\frac{1}{2}", ("boxed",)),
        (r"\boxed{1} and \boxed{x^{2}}", "x^{2}", ("boxed",)),
        (r"\boxed{1", r"\boxed{1", ()),
        ("$x+1$", "x+1", ("marks",)),
        ("$1$ or $2$", "$1$ or $2$", ()),
        ("1,234,567", "1234567", ("number",)),
        ("1,23", "1,23", ()),
        ("7.00", "7", ("number",)),
        ("0.5", "0.5", ()),
        ("Paris.", "Paris", ("full_stop",)),
        (" yes ", "yes", ("space",)),
        (r"#### $\boxed{1,000.0}$.", "1000", ("final_line", "boxed", "number")),
        ("$", "$", ()),
        (".", ".", ()),
    ],
)
def test_answers(text: str, answer: str, done: tuple[str, ...]) -> None:
    assert normalise_answer(text) == (answer, done)
    assert normalise_answer(answer)[0] == answer


def test_case_spacing_and_marks_make_no_difference_and_signs_do() -> None:
    assert words_of("What is  12 + 7?") == words_of("what IS 12 + 7") == ["what", "is", "12", "+", "7"]
    assert words_of("1+1=") != words_of("1-1=")
    assert words_of("ﬁve") == ["five"]
    assert words_of("?!") == ["?!"]


def test_runs_of_words() -> None:
    assert len(gram_hashes(list("abcde"), 3)) == 3
    assert gram_hashes(list("ab"), 3) == gram_hashes(list("ab"), 2)
    assert gram_hashes(list("abcab"), 2) == gram_hashes(list("abca"), 2)
