"""Guess a number from 1 to 7 in three turns: the answers are > (it is higher) and < (it is lower)."""

from random import Random

NUMBERS = range(1, 8)
GUESSES = 3


class Guess:
    """One game. Whoever halves what is left always wins; guessing blindly wins four games in ten."""

    def reset(self, seed: int) -> str:
        self.random = Random(seed)
        self.number = self.random.choice(NUMBERS)
        self.left = GUESSES
        return "guess 1-7:"

    def step(self, text: str) -> tuple[str, float, bool]:
        self.left -= 1
        if text == str(self.number):
            return "", 1.0, True
        if not self.left:
            return "", 0.0, True
        if not text.isdecimal():
            return "?", 0.0, False
        return ">" if self.number > int(text) else "<", 0.0, False

    def demonstrate(self) -> str:
        """Guess blindly: the warm start teaches what a guess looks like, and RL how to guess."""
        return str(self.random.choice(NUMBERS))
