from __future__ import annotations

from random import Random

from coordinator.tasks.curation.duplicates import ExactDuplicates, NearDuplicates


def test_the_same_words_with_the_same_or_another_answer() -> None:
    seen = ExactDuplicates()
    assert seen.look(["a", "b"], "1") == ""
    assert seen.look(["a", "b"], "1") == "exact_duplicate"
    assert seen.look(["a", "b"], "2") == "contradiction"
    assert seen.look(["a"], "1") == ""


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


def test_it_is_the_same_in_every_process() -> None:
    near = NearDuplicates(0.5)
    assert (
        near._signature(["a", "b", "c", "d"])[:2].tolist() == NearDuplicates(0.9)._signature(list("abcd"))[:2].tolist()
    )
