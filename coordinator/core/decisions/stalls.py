"""Fail a run that has been without an origin, the learner, or a peer that may work for longer than its timeouts."""

from __future__ import annotations

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import FailRun


class Stalls:
    """Measures for how long a process has been missing. All times are the core's clock in seconds.

    Missing peers count only once there is a version for them, as a warm start may take longer than the peers' timeout,
    and not while the run is paused.
    """

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._started_at: float | None = None
        self._no_origin_since: float | None = None
        self._failed = False
        self.no_peer_since: float | None = None

    def observe(self, now: float) -> None:
        """Update the clocks; called after every event that may change which processes are connected."""
        state = self._state
        if self._started_at is None:
            self._started_at = now
        if state.members.origin is not None:
            self._no_origin_since = None
        elif self._no_origin_since is None:
            self._no_origin_since = now
        if state.members.worker_count or state.newest_version is None or state.paused:
            self.no_peer_since = None
        elif self.no_peer_since is None:
            self.no_peer_since = now

    def overdue(self, now: float) -> FailRun | None:
        """Return the failure that ends the run, once; None while no timeout has passed."""
        if self._failed or self._state.ended:
            return None
        failure = self._without_origin(now) or self._without_learner(now) or self._without_peers(now)
        self._failed = failure is not None
        return failure

    def _without_origin(self, now: float) -> FailRun | None:
        missing_s = 0.0 if self._no_origin_since is None else now - self._no_origin_since
        if missing_s < self._state.settings.start_timeout_s:
            return None
        return _wait_timed_out(f"no origin for {missing_s:.0f} s", "origin", "membership.start_timeout_s")

    def _without_learner(self, now: float) -> FailRun | None:
        settings, called_at = self._state.settings, self._state.progress.called_at
        if called_at is not None:
            silent_s = now - called_at
            if silent_s < settings.learner_timeout_s:
                return None
            return _wait_timed_out(
                f"the learner has not called for {silent_s:.0f} s", "learner", "membership.learner_timeout_s"
            )
        missing_s = 0.0 if self._started_at is None else now - self._started_at
        if missing_s < settings.start_timeout_s:
            return None
        return _wait_timed_out(f"no learner for {missing_s:.0f} s", "learner", "membership.start_timeout_s")

    def _without_peers(self, now: float) -> FailRun | None:
        alone_s = 0.0 if self.no_peer_since is None else now - self.no_peer_since
        if alone_s < self._state.settings.no_peer_timeout_s:
            return None
        fix = "start a peer with an invite from the run folder's secrets"
        if self._state.members.has_role("peer"):
            return FailRun("RC202", f"every peer has been quarantined for {alone_s:.0f} s", fix)
        return FailRun("RC202", f"no peer for {alone_s:.0f} s", fix)


def _wait_timed_out(what: str, role: str, setting: str) -> FailRun:
    return FailRun("RC201", what, f"start the {role} or check its log; if it is only slow, raise {setting}")
