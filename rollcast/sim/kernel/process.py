"""Processes of simulated machines: they start, die at any moment, and stand still under SIGSTOP."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from rollcast.sim.kernel.event_queue import Agenda, Call

#: Something to wait for: is given what to call with the outcome.
Wait = Callable[[Callable[[Any], None]], None]
#: What a process does one step after the other: yields what it waits for and is sent the outcome.
Script = Generator[Wait, Any, None]


class Process:
    """One process after another on one machine. Calls made for a life that is over never happen.

    A frozen process takes nothing in; what comes due meanwhile happens, in order, when it goes on.
    """

    def __init__(self, name: str, agenda: Agenda) -> None:
        self.name = name
        self.agenda = agenda
        self.running = False
        self.frozen = False
        self.life = 0  # rises with every start
        self.on_end: Callable[[Process], None] | None = None  # a supervisor
        self._due: deque[tuple[Call, tuple[Any, ...]]] = deque()

    def start(self) -> None:
        """Start the process; it must not run."""
        if self.running:
            raise ValueError(f"{self.name} runs already")
        self.life += 1
        self.running = True
        self._begin()

    def kill(self) -> None:
        """SIGKILL: nothing more happens in this life."""
        if self.running:
            self.running = self.frozen = False
            self._due.clear()
            self._killed()
            if self.on_end is not None:
                self.on_end(self)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.frozen = self.running

    def thaw(self) -> None:
        """SIGCONT."""
        if not self.frozen:
            return
        self.frozen = False
        while self._due and not self.frozen and self.running:
            call, arguments = self._due.popleft()
            call(*arguments)

    def later(self, seconds: float, call: Call, *arguments: Any) -> None:
        """Make this call in the life that the process lives now."""
        self.agenda.after(seconds, self._call, self.life, call, arguments)

    def here(self, life: int, call: Call, *arguments: Any) -> None:
        """Something arrives for this life of the process."""
        if life == self.life and self.running and not self.frozen and not self._due:
            call(*arguments)
        else:
            self._call(life, call, arguments)

    # ---------------------------------------------------------------- what takes several steps

    def follow(self, script: Script) -> None:
        """Go through a script, in this life only."""
        self._go_on(script, None)

    def _go_on(self, script: Script, outcome: Any) -> None:
        try:
            wait = script.send(outcome)
        except StopIteration:
            return
        wait(lambda next_outcome: self._go_on(script, next_outcome))

    def sleep(self, seconds: float) -> Wait:
        """Wait so long."""
        return lambda go_on: self.later(seconds, go_on, None)

    def _call(self, life: int, call: Call, arguments: tuple[Any, ...]) -> None:
        if life != self.life or not self.running:
            return
        if self.frozen or self._due:
            self._due.append((call, arguments))
        else:
            call(*arguments)

    # ---------------------------------------------------------------- of each kind of process

    def _begin(self) -> None:
        """What a process does when it starts."""

    def _killed(self) -> None:
        """What the machine notices when its process dies."""


class Latch:
    """Something that happens once, and who waits for it."""

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: list[Callable[[Any], None]] = []

    def set(self) -> None:
        """It happened."""
        self.is_set = True
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on(None)

    def wait(self) -> Wait:
        """Wait for it."""

        def begin(go_on: Callable[[Any], None]) -> None:
            if self.is_set:
                go_on(None)
            else:
                self._waiting.append(go_on)

        return begin
