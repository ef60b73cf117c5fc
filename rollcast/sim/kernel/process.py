"""Simulate processes: they start, are killed at any moment, and are suspended by SIGSTOP."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from rollcast.sim.kernel.event_queue import Agenda, Call, Owner

#: Something to wait for: a function that takes the callback to call with the outcome.
Wait = Callable[[Callable[[Any], None]], None]
#: A sequence of steps of a process: a generator that yields what it waits for and is sent the outcome.
Script = Generator[Wait, Any, None]


class Process(Owner):
    """The successive lives of one process on one machine.

    Calls that were scheduled in an earlier life never happen. A frozen process handles nothing; calls that become due
    meanwhile happen in order when it continues.
    """

    def __init__(self, name: str, agenda: Agenda) -> None:
        super().__init__()
        self.name = name
        self.agenda = agenda
        self.running = False
        self.frozen = False
        self.on_end: Callable[[Process], None] | None = None  # called when the process ends, by its supervisor
        self._due: deque[tuple[Call, tuple[Any, ...]]] = deque()

    def start(self) -> None:
        """Start the process.

        Raises:
            ValueError: the process is running.
        """
        if self.running:
            raise ValueError(f"{self.name} runs already")
        self.life += 1
        self.running = self.takes_calls = True
        self._begin()

    def kill(self) -> None:
        """Kill the process, as SIGKILL does: nothing more happens in this life."""
        if self.running:
            self.running = self.frozen = self.takes_calls = False
            self._due.clear()
            self._killed()
            if self.on_end is not None:
                self.on_end(self)

    def freeze(self) -> None:
        """Freeze the process, as SIGSTOP does."""
        self.frozen = self.running
        self.takes_calls = False

    def thaw(self) -> None:
        """Continue a frozen process, as SIGCONT does, with the calls that became due meanwhile."""
        if not self.frozen:
            return
        self.frozen, self.takes_calls = False, not self._due
        while self._due and not self.frozen and self.running:
            call, arguments = self._due.popleft()
            self.takes_calls = not self._due
            call(*arguments)

    def later(self, seconds: float, call: Call, *arguments: Any) -> None:
        """Make a call after ``seconds``, unless the process's current life has ended by then."""
        self.agenda.after_in_life(seconds, self, call, arguments)

    def call_in_life(self, life: int, call: Call, *arguments: Any) -> None:
        """Make a call now if the process still lives this life; later if it is frozen, never if that life is over."""
        if life == self.life and self.takes_calls:
            call(*arguments)
        else:
            self.hold(life, call, arguments)

    # ---------------------------------------------------------------- scripts: work in several steps

    def follow(self, script: Script) -> None:
        """Run a script; it stops silently when this life of the process ends."""
        self._resume(script, None)

    def _resume(self, script: Script, outcome: Any) -> None:
        try:
            wait = script.send(outcome)
        except StopIteration:
            return
        wait(lambda next_outcome: self._resume(script, next_outcome))

    def sleep(self, seconds: float) -> Wait:
        """Return a wait of ``seconds``."""
        return lambda resume: self.later(seconds, resume, None)

    def hold(self, life: int, call: Call, arguments: tuple[Any, ...]) -> None:
        """Keep a call of a frozen process until it continues; discard one of a life that is over."""
        if life == self.life and self.running:
            self._due.append((call, arguments))

    # ---------------------------------------------------------------- hooks of the kinds of processes

    def _begin(self) -> None:
        """Start working; overridden by each kind of process."""

    def _killed(self) -> None:
        """Clean up after the process died; overridden by each kind of process."""


class Latch:
    """An event that happens once and releases every script that waits for it."""

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: list[Callable[[Any], None]] = []

    def set(self) -> None:
        """Mark the event as happened and release the waiting scripts."""
        self.is_set = True
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume(None)

    def wait(self) -> Wait:
        """Return a wait for the event; over at once if it has happened."""

        def begin(resume: Callable[[Any], None]) -> None:
            if self.is_set:
                resume(None)
            else:
                self._waiting.append(resume)

        return begin
