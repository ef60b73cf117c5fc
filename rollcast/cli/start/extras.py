"""Tell which packages the extras of Rollcast install, and which extra a missing package belongs to."""

from __future__ import annotations

import importlib.metadata
import re
import traceback

from rollcast.runtime.errors import MissingExtra
from rollcast.runtime.install import install_command

_DISTRIBUTION = "rollcast"
#: Packages whose name differs from their distribution's.
_DISTRIBUTIONS = {"orbax": "orbax-checkpoint", "psycopg_binary": "psycopg", "pynvml": "nvidia-ml-py", "sky": "skypilot"}
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)[^;]*;.*\bextra == ['\"](?P<extra>[^'\"]+)")


def missing_extra(error: ImportError) -> MissingExtra | None:
    """Return what to tell a user whose installation lacks a package of an extra; None if the error is another one."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__
    if cause is None:
        return None
    package = (cause.name or "").partition(".")[0]
    extras = extras_with(package)
    if not extras:
        return None
    return MissingExtra(
        "this command needs packages that are not installed",
        cause=f"the package {package} is missing",
        fix=install_command(next((one for one in _importers(cause) if one in extras), extras[0])),
    )


def extras_with(package: str) -> list[str]:
    """Return the extras that install an importable package, in the order of pyproject.toml."""
    wanted = _normal(_DISTRIBUTIONS.get(package, package))
    return [extra for name, extra in _requirements() if _normal(name) == wanted]


def required(extra: str) -> list[str]:
    """Return the names of the distributions that an extra installs."""
    return [name for name, of in _requirements() if of == extra and name != _DISTRIBUTION]


def _requirements() -> list[tuple[str, str]]:
    """Return each distribution that an extra installs, with the extra, from our own metadata."""
    found = map(_REQUIREMENT.match, importlib.metadata.requires(_DISTRIBUTION) or [])
    return [(one["name"], one["extra"]) for one in found if one is not None]


def _importers(error: ModuleNotFoundError) -> list[str]:
    """Return the top-level packages whose code asked for the missing one, the nearest first: learner, peer ..."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [name.partition(".")[0] for name in reversed(frames)]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
