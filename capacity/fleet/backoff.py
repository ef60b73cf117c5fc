"""Decide how long to wait after a worker or a provider failed: backoff with jitter, and a circuit breaker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Uniform = Callable[[float, float], float]
"""A function like ``random.uniform``; the caller passes it, so that decisions stay pure."""


@dataclass(slots=True)
class Backoff:
    """One worker's consecutive failures."""

    failures: int = 0
    not_before: float = 0.0

    def failed(self, now: float, uniform: Uniform, *, first_s: float, most_s: float) -> None:
        """Wait longer than after the previous failure: half of a rising ceiling, and up to as much again at random."""
        ceiling_s = min(most_s, first_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        self.not_before = now + uniform(ceiling_s / 2.0, ceiling_s)

    def succeeded(self) -> None:
        """Reset: the next failure counts as the first."""
        self.failures = 0


@dataclass(slots=True)
class Breaker:
    """One provider's consecutive failures, whichever worker they concern.

    While the breaker is closed, any worker may be started. After ``failures_max`` failures it opens: no worker may be
    started for a time that doubles with each opening. Then one start is tried; its success closes the breaker, its
    failure opens it again.
    """

    failures_max: int
    open_s: float
    open_s_max: float
    failures: int = 0
    times_opened: int = 0
    open_until: float = 0.0
    trial: str = ""

    def allows(self, now: float) -> bool:
        """Return whether a start may be tried."""
        if self.failures < self.failures_max:
            return True
        return now >= self.open_until and not self.trial

    def started(self, key: str) -> None:
        """Record a start; while the breaker is not closed, it is the only one allowed."""
        if self.failures >= self.failures_max:
            self.trial = key

    def failed(self, key: str, now: float, uniform: Uniform) -> bool:
        """Record a failed start; return whether it opened the breaker."""
        self.failures += 1
        was_trial = self.trial == key
        if was_trial:
            self.trial = ""
        if not was_trial and (self.failures < self.failures_max or now < self.open_until):
            return False
        open_s = min(self.open_s_max, self.open_s * 2.0 ** min(self.times_opened, 32))
        self.times_opened += 1
        self.open_until = now + uniform(open_s / 2.0, open_s)
        return True

    def succeeded(self) -> None:
        """Record that a worker of this provider works."""
        self.failures, self.times_opened, self.trial = 0, 0, ""

    def discard(self, key: str) -> None:
        """Discard a start that was cancelled: it is no evidence about the provider."""
        if self.trial == key:
            self.trial = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatienceSettings:
    """Settings of backoff and breaker; durations in seconds."""

    backoff_first_s: float = 10.0
    backoff_most_s: float = 900.0
    failures_max: int = 3
    """Consecutive failed starts after which no more are tried at a provider for a while."""
    breaker_open_s: float = 120.0
    breaker_open_most_s: float = 3600.0


class ProviderPatience:
    """All backoffs and breakers of a fleet."""

    def __init__(self, settings: PatienceSettings, uniform: Uniform) -> None:
        self._settings = settings
        self._uniform = uniform
        self._backoffs: dict[str, Backoff] = {}
        self._breakers: dict[str, Breaker] = {}

    def refusal(self, worker_id: str, provider: str, now: float) -> str:
        """Return in words why this worker should not be started now; empty if it may."""
        if now < self._backoff(worker_id).not_before:
            return "it failed before and is not started again for a while"
        if not self._breaker(provider).allows(now):
            return f"starts at {provider} failed, so none is tried there for a while"
        return ""

    def started(self, key: str, provider: str) -> None:
        """Record that a start is tried under this tag."""
        self._breaker(provider).started(key)

    def called_off(self, key: str, provider: str) -> None:
        """Record that a start was cancelled before it could succeed or fail."""
        self._breaker(provider).discard(key)

    def joined(self, provider: str) -> None:
        """Record that a worker of this provider has joined."""
        self._breaker(provider).succeeded()

    def proved(self, worker_id: str) -> None:
        """Record that this worker worked for long enough for its next failure to count as its first."""
        self._backoff(worker_id).succeeded()

    def failed(self, worker_id: str, key: str, provider: str, now: float) -> str:
        """Record a failed start; return in words what that means for the provider, empty if nothing."""
        settings, breaker = self._settings, self._breaker(provider)
        first_s, most_s = settings.backoff_first_s, settings.backoff_most_s
        self._backoff(worker_id).failed(now, self._uniform, first_s=first_s, most_s=most_s)
        if not breaker.failed(key, now, self._uniform):
            return ""
        return f"{breaker.failures} consecutive starts failed; none is tried for {breaker.open_until - now:.0f} s"

    def _backoff(self, worker_id: str) -> Backoff:
        return self._backoffs.setdefault(worker_id, Backoff())

    def _breaker(self, provider: str) -> Breaker:
        settings = self._settings
        if provider not in self._breakers:
            new = Breaker(settings.failures_max, settings.breaker_open_s, settings.breaker_open_most_s)
            self._breakers[provider] = new
        return self._breakers[provider]
