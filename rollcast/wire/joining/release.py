"""Compare the installed release with the one that an invite names.

A run's owner chooses the release that its machines are to run, and where its wheel lies; a coordinator names it in
invites and never serves code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rollcast import __version__
from rollcast.runtime.errors import JoinRefused, ReleaseMismatch
from rollcast.runtime.install import install_command_from, installed_sha256
from rollcast.wire.ids import Role

VERSION_PATTERN = r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})"
SHA256_PATTERN = r"[0-9a-f]{64}"
URL_PATTERN = r"https?://[A-Za-z0-9._:\[\]-]{1,255}(/[A-Za-z0-9._~%+-]{1,255}){0,16}"

_FORMS = {"version": VERSION_PATTERN, "sha256": SHA256_PATTERN, "url": URL_PATTERN}
_EXTRAS: Mapping[Role, str] = {"peer": "peer", "learner": "learner"}


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Rollcast.

    Args:
        version: three numbers, for example 0.2.0.
        sha256: digest of the wheel, in hex; empty: every build of the version will do.
        url: address of the wheel; empty: the owner of the run gives it to donors.

    Raises:
        JoinRefused: a value does not have its form, or there is an address without a digest.
    """

    version: str
    sha256: str = ""
    url: str = ""

    def __post_init__(self) -> None:
        for name, form in _FORMS.items():
            value = getattr(self, name)
            may_be_empty = name != "version"
            if not isinstance(value, str) or not ((may_be_empty and not value) or re.fullmatch(form, value)):
                raise _malformed(f"the {name} of its release is malformed")
        if self.url and not self.sha256:
            raise _malformed("its release has an address but no digest")

    def accepts(self, version: str) -> bool:
        """Return whether a machine with this version may take part: versions of one series are compatible.

        A series is all versions with the same first number, or before 1.0 with the same two.
        """
        return _series(version) == _series(self.version)


def check_release(
    expected: Release | None, role: Role, *, version: str = __version__, sha256: str | None = None
) -> None:
    """Check that this installation may take part in the run.

    Args:
        expected: from the invite; None: the run expects no particular release.
        version, sha256: of this installation. The digest is that of the wheel, as pip recorded it; None: look it up.

    Raises:
        ReleaseMismatch: it is of another series, or another build of the very version.
    """
    if expected is None:
        return
    if not expected.accepts(version):
        cause = f"this machine has {version}, and {expected.version} is expected"
    elif version == expected.version and expected.sha256:
        installed = installed_sha256() if sha256 is None else sha256
        if installed in ("", expected.sha256):  # empty: it was not installed from a wheel, but from a clone
            return
        cause = f"this machine has another build of {version}: its wheel begins with {installed[:12]}, not with"
        cause += f" {expected.sha256[:12]}"
    else:
        return
    raise ReleaseMismatch(
        "the run expects another release of Rollcast", cause=cause, fix=f"install it: {_command(expected, role)}"
    )


def _command(expected: Release, role: Role) -> str:
    if not expected.url:
        return f"ask the run's operator for the wheel of {expected.version}"
    return install_command_from(f"{expected.url}#sha256={expected.sha256}", *filter(None, [_EXTRAS.get(role)]))


def _series(version: str) -> tuple[str, ...]:
    numbers = version.split(".")
    return tuple(numbers[:2] if numbers[0] == "0" else numbers[:1])


def _malformed(cause: str) -> JoinRefused:
    return JoinRefused("this is not an invite", cause=cause, fix="copy the whole string that the operator sent")
