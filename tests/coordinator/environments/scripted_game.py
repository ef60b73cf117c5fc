"""A game that does what the policy tells it to, so that a test can make it die, hang or lie."""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path
from typing import Any


class ScriptedGame:
    """``folder`` is where it leaves marks: deeds that it does once, and games that were closed."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._seed = 0
        self._said: list[str] = []

    def reset(self, seed: int) -> str:
        self._seed = seed
        if seed == 404:
            raise ValueError("there is no such game")
        return f"game {seed}"

    def step(self, text: str) -> Any:
        self._said.append(text)
        deed, _, where = text.partition(" ")
        if not where or self._first_time(where):
            match deed:
                case "die":
                    os._exit(3)
                case "hang":
                    (self._folder / "hangs").touch()
                    time.sleep(3600)
                case "raise":
                    raise ValueError("the policy wanted it")
                case "exit":
                    sys.exit(3)
                case "print":
                    print("a library speaks")
                case "three":
                    return "only", 0.0, False, "more"
                case "nan":
                    return "x", float("nan"), False
                case "long":
                    return "x" * (1 << 21), 0.0, False
        if deed == "forget":  # does not follow from the seed
            return str(os.getpid()), 0.0, False
        return f"{self._seed}: {' '.join(self._said)}", 0.5, deed == "end"

    def demonstrate(self) -> str:
        return "end" if self._said else "begin"

    def close(self) -> None:
        (self._folder / f"closed-{self._seed}-{time.monotonic_ns()}").touch()

    def _first_time(self, where: str) -> bool:
        mark = self._folder / where
        if mark.exists():
            return False
        mark.touch()
        return True


class SharingGame(ScriptedGame):
    """What it shares with other games is freed when its process ends in order."""

    def reset(self, seed: int) -> str:
        atexit.register((self._folder / "left").touch)
        return super().reset(seed)


class AsyncGame:
    """Its methods are coroutines, and it has a tool."""

    tools = ({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},)

    async def reset(self, seed: int) -> list[dict[str, str]]:
        return [{"role": "system", "content": "Add."}, {"role": "user", "content": str(seed)}]

    async def step(self, text: str, calls: list[dict[str, Any]]) -> tuple[str, float, bool]:
        if not calls:
            return "", 1.0, True
        return str(sum(calls[0]["arguments"]["numbers"])), 0.0, False


class NoGame:
    """It cannot be played."""


class Unplayable:
    """It begins, and takes no turn."""

    def reset(self, seed: int) -> str:
        return f"{seed}"


class Haggle:
    """Two agents in turn: each is shown what the other said. The policy may make it die, as in ScriptedGame."""

    agents = ("seller", "buyer")

    def __init__(self, first: str = "seller", folder: str = "") -> None:
        self._deeds = ScriptedGame(folder)
        self._order = [first, *(name for name in self.agents if name != first)]
        self._said: list[str] = []

    def reset(self, seed: int) -> tuple[str, str, str]:
        return "sell:", self._order[0], f"cost {seed}"

    def step(self, text: str) -> tuple[str, str, dict[str, float], bool]:
        self._said.append(text)
        if text.startswith("die"):
            self._deeds.step(text)
        done = text == "deal"
        return self._order[len(self._said) % 2], text, {"seller": 0.5, "buyer": 0.25} if done else {"seller": 1.0}, done

    def demonstrate(self) -> str:
        return "deal" if len(self._said) == 3 else str(len(self._said))


class NoTeacher(Haggle):
    """Nobody plays the opponent of an evaluation."""

    demonstrate = None  # type: ignore[assignment]


class Twins(Haggle):
    """Its agents cannot be told apart."""

    agents = ("twin", "twin")


class OneReward(Haggle):
    """Its answers are those of a game of one agent."""

    def step(self, text: str) -> Any:
        return text, 0.0, False
