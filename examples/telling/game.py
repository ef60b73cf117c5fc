"""Two agents have to understand each other: one is told a digit and passes a message, the other names the digit."""

from random import Random

DIGITS = "12345"
ROUNDS = 2


class Telling:
    """One game of two rounds. Both agents get half a point for each digit that the listener names."""

    agents = ("teller", "listener")

    def reset(self, seed: int) -> tuple[str, str, str]:
        self.random = Random(seed)
        self.rounds = 0
        self.speaker = "teller"
        self.shown = self.digit = self.random.choice(DIGITS)
        return "tell\n", self.speaker, f"told {self.shown}:"

    def step(self, text: str) -> tuple[str, str, dict[str, float], bool]:
        if self.speaker == "teller":
            self.speaker, self.shown = "listener", text[:1] or "-"
            return self.speaker, f"heard {self.shown}:", {}, False
        reward = 0.5 * (text == self.digit)
        rewards = {"teller": reward, "listener": reward}
        self.rounds += 1
        self.speaker = "teller"
        self.shown = self.digit = self.random.choice(DIGITS)
        return self.speaker, f"told {self.shown}:", rewards, self.rounds == ROUNDS

    def demonstrate(self) -> str:
        """Copy the digit that is shown half of the time: RL finds out that both agents win if they always do."""
        return self.shown if self.random.random() < 0.5 else self.random.choice(DIGITS)
