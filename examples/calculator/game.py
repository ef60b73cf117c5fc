"""Multiply with a calculator: a small policy cannot do it by itself, so it has to learn to ask."""

import re
from random import Random


class Calculator:
    """One product. `calc 12*34` is answered with the result; anything else is the answer."""

    def reset(self, seed: int) -> str:
        self.random = Random(seed)
        self.task = f"{self.random.randint(10, 99)}*{self.random.randint(10, 99)}"
        self.answer = self.calculate(self.task)
        self.asks = self.random.random() < 1 / 3  # the teacher: mostly it guesses
        self.results = []
        return f"{self.task}="

    def step(self, text: str) -> tuple[str, float, bool]:
        if text.startswith("calc ") and not self.results:
            self.results.append(self.calculate(text.removeprefix("calc ")))
            return f"{self.results[0]}=", 0.0, False
        return "", float(text == self.answer), True

    def demonstrate(self) -> str:
        """Ask seldom, so that the warm start leaves something to learn."""
        if self.results:
            return self.results[0]
        return f"calc {self.task}" if self.asks else str(self.random.randint(100, 9801))

    @staticmethod
    def calculate(expression: str) -> str:
        terms = re.fullmatch(r"(\d{1,9})\*(\d{1,9})", expression)
        return str(int(terms[1]) * int(terms[2])) if terms else "error"
