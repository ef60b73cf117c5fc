"""Make a coordinator one of a cell: take the run and its learner's key from the head's invite."""

from __future__ import annotations

from coordinator.config.config import CoordinatorConfig
from rollcast.runtime.errors import JoinRefused
from rollcast.wire.joining.invite import Invite, read_invite

INVITE_TIMEOUT_S = 60.0
"""Seconds to wait for the file of the head's invite to appear."""


async def head_of(config: CoordinatorConfig) -> Invite | None:
    """Return the head's invite of this coordinator's cell; None if it has a run of its own.

    Raises:
        JoinRefused: it cannot be read, or is not for a cell.
        WaitTimedOut: the file did not appear.
    """
    path = config.cell.invite_file
    if path is None:
        return None
    invite = await read_invite("", path, INVITE_TIMEOUT_S)
    if invite.role != "cell":
        what = f"the head's invite in {path} is for the role {invite.role}, not for a cell"
        raise JoinRefused(what, fix="have the head's operator run `rollcast invite --role cell`")
    return invite


def as_cell(config: CoordinatorConfig, head: Invite) -> CoordinatorConfig:
    """Return the configuration with the key that signs the head's versions."""
    return config.model_copy(update={"learner_public_key": head.learner_public_key})
