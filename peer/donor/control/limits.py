"""The limits in force: those of the configuration file, replaced by the owner's changes at run time.

Changes are written to the state folder, because the configuration may be a file that the daemon cannot write.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from peer.config import LinkConfig, PeerConfig
from peer.limits.config import LimitsConfig
from rollcast.runtime.config import parse_config
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.run_folder import run_folder_error, write_atomically

FILE = "limits.json"
_BYTES_MAX = 65536
_SOURCE = "limits"
#: Limits that take effect at the next start of the process.
AT_RESTART = frozenset({"polite", "vram_share_max"})


class OwnerLimits(LimitsConfig):
    """All limits in one place: those of [limits], and the caps of [link]."""

    upload_mbit_s_max: float | None = Field(None, gt=0.0)
    """Cap on the chunks that all links together send, in Mbit/s; none: no cap."""
    download_mbit_s_max: float | None = Field(None, gt=0.0)
    """Cap on what all links together receive, in Mbit/s; none: no cap."""
    lan_exempt: bool = True
    """Whether links to private, link-local and loopback addresses are exempt from both caps; they never count towards
    the quotas."""


_LINK_KEYS = ("upload_mbit_s_max", "download_mbit_s_max", "lan_exempt")


class OwnerLimitsBook:
    """The limits of the configuration with the owner's changes, which are read at startup.

    A damaged file of changes is an error, not an absent one: the owner relies on those limits.

    Args:
        configured: the configuration file's settings.

    Raises:
        ConfigError: the file of changes cannot be read, or holds an invalid limit.
    """

    def __init__(self, configured: PeerConfig) -> None:
        self._configured = configured
        self._path = configured.state_folder / FILE
        self._changes = self._read()
        self.limits = self._with(self._changes)
        """The limits in force."""

    @property
    def changed(self) -> list[str]:
        """The keys that the owner set at run time."""
        return sorted(self._changes)

    @property
    def config(self) -> PeerConfig:
        """The configuration with the limits in force."""
        values = {name: getattr(self.limits, name) for name in OwnerLimits.model_fields}
        link = self._configured.link.model_copy(update={name: values.pop(name) for name in _LINK_KEYS})
        return self._configured.model_copy(update={"link": link, "limits": LimitsConfig(**values)})

    def change(self, values: Mapping[str, Any]) -> OwnerLimits:
        """Set some limits and write them to disk; the value None removes a limit. Return all limits.

        Raises:
            ConfigError: a key is unknown or a value is out of range; nothing is changed then.
            RunFolderError: the file cannot be written.
        """
        _check_names(values)
        return self._keep({**self._changes, **values})

    def reset(self, keys: Iterable[str] | None = None) -> OwnerLimits:
        """Reset limits to those of the configuration file; ``keys`` None: all of them.

        Raises:
            ConfigError: a key is unknown.
            RunFolderError: the file cannot be written.
        """
        gone = set(OwnerLimits.model_fields if keys is None else keys)
        _check_names(gone)
        return self._keep({key: value for key, value in self._changes.items() if key not in gone})

    def _keep(self, changes: dict[str, Any]) -> OwnerLimits:
        limits = self._with(changes)
        kept = {key: value for key, value in limits.model_dump(mode="json").items() if key in changes}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(kept, indent=2).encode())
        except OSError as error:
            raise run_folder_error(self._path.parent, error) from None
        self._changes, self.limits = kept, limits
        return limits

    def _with(self, changes: Mapping[str, Any]) -> OwnerLimits:
        try:
            return parse_config({**configured_limits(self._configured), **changes}, OwnerLimits, source=_SOURCE)
        except ConfigError as error:
            error.fix = "correct it; `rollcast peer limits` lists every limit with its meaning"
            raise

    def _read(self) -> dict[str, Any]:
        try:
            with self._path.open("rb") as file:
                values = json.loads(file.read(_BYTES_MAX))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._unreadable(str(error)) from None
        if not isinstance(values, dict):
            raise self._unreadable("it is not one JSON object")
        return values

    def _unreadable(self, cause: str) -> ConfigError:
        fix = "remove the file to go back to the limits of the configuration, or correct it"
        return ConfigError(f"the limits in {self._path} cannot be read", cause=cause, fix=fix)


def _check_names(names: Iterable[str]) -> None:
    """Check that every limit exists.

    Raises:
        ConfigError: one does not.
    """
    for name in sorted(set(names) - OwnerLimits.model_fields.keys()):
        meant = [known for known in OwnerLimits.model_fields if known.startswith(f"{name}_")]
        meant = meant or difflib.get_close_matches(name, OwnerLimits.model_fields, n=1, cutoff=0.4)
        hint = f"did you mean {' or '.join(meant)}? " if meant else ""
        raise ConfigError(f"there is no limit {name!r}", fix=f"{hint}`rollcast peer limits` lists all limits")


def configured_limits(config: PeerConfig) -> dict[str, Any]:
    """Return every limit of a configuration by key."""
    link: LinkConfig = config.link
    return {**config.limits.model_dump(), **{name: getattr(link, name) for name in _LINK_KEYS}}
