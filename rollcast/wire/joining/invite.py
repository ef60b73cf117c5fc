"""Encode and decode invites: one string with all that a new process needs to find a run and to recognise it."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import get_args

import structlog

from rollcast.runtime.errors import JoinRefused
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import Role, RunId
from rollcast.wire.joining.bootstrap import PLACE_PATTERN, PLACES_MOST, Bootstrap, bootstraps
from rollcast.wire.joining.release import Release
from rollcast.wire.limits import INVITE_LENGTH_MAX

QUOTA_DEFAULT = 5  # identities an invite admits: one donor's machines, and few new ones for whoever was banned
log = structlog.get_logger()

_PREFIX = "rollcast1-"
_POLL_S = 0.05

_FORMS = {
    "run_id": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"),
    "role": re.compile("|".join(role for role in get_args(Role) if role != "coordinator")),
    "http_url": re.compile(r"https?://[A-Za-z0-9._:\[\]-]{1,255}"),
    "grpc_address": re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}:[0-9]{1,5}"),
    "ca_sha256": re.compile(r"[0-9a-f]{64}"),
    "learner_public_key": re.compile(r"[0-9a-f]{64}"),
    "token": re.compile(r"[A-Za-z0-9._~-]{1,256}"),
}


@dataclass(frozen=True, slots=True)
class Invite:
    """The content of an invite. Its quota and expiry are kept by the coordinator.

    Raises:
        JoinRefused: a field does not have its form.
    """

    run_id: RunId
    role: Role
    http_url: str  # http://host:port or https://host:port, without a path
    grpc_address: str  # host:port
    ca_sha256: str  # hex: fingerprint of the run CA
    learner_public_key: str  # hex: the key that signs versions, whatever key the coordinator names
    token: str = field(repr=False)
    further: tuple[str, ...] = ()  # places of the same coordinator: see rollcast.wire.joining.bootstrap.PLACE_PATTERN
    release: Release | None = None  # that the run expects of its machines; None: any that speaks the protocol

    def __post_init__(self) -> None:
        for name, form in _FORMS.items():
            value = getattr(self, name)
            if not isinstance(value, str) or form.fullmatch(value) is None:
                raise _not_an_invite(f"its {name} is malformed")
        if len(self.further) >= PLACES_MOST or not all(map(_is_place, self.further)):
            raise _not_an_invite("its further addresses are malformed")

    def places(self, also: Sequence[str] = ()) -> tuple[Bootstrap, ...]:
        """Return the places where the coordinator may be found, in the order to try.

        Args:
            also: further places of the form ``PLACE_PATTERN``.
        """
        return bootstraps(self.http_url, self.grpc_address, (*self.further, *also))

    def encode(self) -> str:
        """Return the string to give to a new member. It holds a secret."""
        values: dict[str, object] = {name: getattr(self, name) for name in _FORMS}
        if self.further:  # earlier releases can read an invite without them
            values["further"] = list(self.further)
        if self.release is not None:
            values["release"] = asdict(self.release)
        text = json.dumps(values, separators=(",", ":"))
        return _PREFIX + base64.urlsafe_b64encode(text.encode("ascii")).decode("ascii").rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Invite:
        """Parse the string of an invite, ignoring white space around it.

        Raises:
            JoinRefused: the text is not an invite.
        """
        text = text.strip()
        if not text.startswith(_PREFIX) or len(text) > INVITE_LENGTH_MAX:
            raise _not_an_invite(f"it does not start with {_PREFIX} or is too long")
        body = text.removeprefix(_PREFIX)
        try:
            data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            values = json.loads(data)
        except (ValueError, RecursionError):
            raise _not_an_invite("part of it is missing or changed") from None
        further = values.pop("further", []) if isinstance(values, dict) else None
        release = values.pop("release", None) if isinstance(values, dict) else None
        if not isinstance(values, dict) or values.keys() != _FORMS.keys() or not isinstance(further, list):
            raise _not_an_invite("it has other fields than this version of Rollcast expects")
        return cls(**values, further=tuple(further), release=None if release is None else _release(release))


async def read_invite(text: str, file: Path | None, timeout_s: float) -> Invite:
    """Return the invite in ``text``, or else in ``file``, which may appear within ``timeout_s`` seconds.

    Raises:
        JoinRefused: neither is given, or the text is not an invite.
        WaitTimedOut: the file did not appear.
    """
    if text:
        return Invite.decode(text)
    if file is None:
        raise JoinRefused("no invite", fix="set invite or invite_file; the operator creates invites")
    fix = "start the coordinator, or copy the invite that it wrote to this place"
    async with deadline(timeout_s, f"the invite in {file}", fix=fix):
        is_reported = False
        while True:  # another process writes the file, so polling is the only way to notice it
            content = await asyncio.to_thread(_read, file)
            if content.strip():
                return Invite.decode(content)
            if not is_reported:
                log.info("waiting for the invite", file=str(file), at_most_s=timeout_s, fix=fix)
                is_reported = True
            await asyncio.sleep(_POLL_S)


def _release(values: object) -> Release:
    if not isinstance(values, dict) or not {"version"} <= values.keys() <= {"version", "sha256", "url"}:
        raise _not_an_invite("its release is malformed")
    return Release(**values)


def _is_place(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(PLACE_PATTERN, text) is not None and "\n" not in text


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(INVITE_LENGTH_MAX + 100).decode("ascii", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise JoinRefused(f"cannot read the invite {file}", cause=str(error)) from None


def _not_an_invite(cause: str) -> JoinRefused:
    return JoinRefused("this is not an invite", cause=cause, fix="copy the whole string that the operator sent")
