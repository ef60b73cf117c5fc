from __future__ import annotations

import pytest

from coordinator.tasks.curation.normalise import normalise_answer


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
