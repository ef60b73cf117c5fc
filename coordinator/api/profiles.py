"""Serve profiles of the learner to people: order one, and return its state."""

from __future__ import annotations

import secrets
from dataclasses import asdict

from pydantic import Field

from coordinator.core.events.profile_events import ProfileOrder, ProfileRequested
from coordinator.core.members.learner_profile import ProfileStatus
from coordinator.http.routes import Answer, Body, Call, Query, Route
from coordinator.shell.shell import Shell
from rollcast.runtime.errors import NotProfiled, ProcessFailed
from rollcast.wire import limits

DEADLINE_S_DEFAULT = 1800.0
_ID_BYTES = 4


class ProfileWanted(Body):
    """What to profile: the learner's next ``steps`` steps, within ``deadline_s`` seconds."""

    steps: int = Field(3, ge=1, le=limits.PROFILE_STEPS_MAX)
    python_tracer: bool = False
    deadline_s: float = Field(DEADLINE_S_DEFAULT, gt=0.0, le=limits.DURATION_S_MAX)


class ProfileNamed(Query):
    """A profile that was ordered."""

    profile_id: str = Field(min_length=1, max_length=limits.PROFILE_ID_LENGTH_MAX)


class ProfileRoutes:
    """Routes of profiles."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def routes(self) -> list[Route]:
        """Return the routes, each with its path and the role that it requires."""
        return [
            Route(
                "POST",
                "/api/v1/acts/profile",
                "operator",
                self._order,
                "Trace the learner's next steps with jax.profiler.",
                body=ProfileWanted,
                answer=ProfileStatus,
                act="profile",
                needs_run=True,
            ),
            Route(
                "GET",
                "/api/v1/profile",
                "viewer",
                self._state,
                "Return the state of the newest profile of the learner.",
                query=ProfileNamed,
                answer=ProfileStatus,
            ),
        ]

    async def _order(self, call: Call) -> Answer:
        wanted: ProfileWanted = call.body
        refused = self._shell.core.profile_refused(self._shell.clock())
        if refused:
            raise NotProfiled(
                "the learner's steps cannot be profiled now",
                cause=refused,
                fix="wait for the other profile, or see that the learner runs",
            )
        order = ProfileOrder(secrets.token_hex(_ID_BYTES), wanted.steps, wanted.python_tracer)
        self._shell.apply(ProfileRequested(order, wanted.deadline_s))
        if self._shell.core.profile is None:
            raise ProcessFailed("the coordinator cannot order a profile", fix="see the coordinator's log")
        return asdict(self._shell.core.profile.status())

    async def _state(self, call: Call) -> Answer:
        named: ProfileNamed = call.query
        profile = self._shell.core.profile
        if profile is None or profile.order.profile_id != named.profile_id:
            raise NotProfiled(
                "this profile is not known",
                cause="there is a newer one, or the coordinator was restarted",
                fix="order one with `rollcast profile`",
            )
        return asdict(profile.status())
