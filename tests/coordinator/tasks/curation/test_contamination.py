from __future__ import annotations

import pytest

from coordinator.tasks.curation.contamination import EvaluationTexts, Overlap
from coordinator.tasks.curation.ngrams import words_of

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


def test_a_part_of_it(texts: EvaluationTexts) -> None:
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
