"""The `limits` command of the control socket: show, set and reset limits (rollcast.wire.donor.control_socket)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from peer.donor.control.limits import AT_RESTART, OwnerLimitsBook
from rollcast.runtime.errors import MalformedMessage

log = structlog.get_logger()

_FORM = 'write {"do": "limits"}, with "set": {key: value} or "reset": [keys] or true'


class LimitsCommand:
    """The command; call it with a request {"do": "limits"}, optionally with "set" or "reset".

    Args:
        changed: called after limits were changed and written to disk.
    """

    def __init__(self, book: OwnerLimitsBook, changed: Callable[[], None]) -> None:
        self._book = book
        self._changed = changed
        self._at_start = book.limits

    def __call__(self, values: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request.

        Returns:
            The limits in force, the keys that were set at run time, and those that take effect at the next start.

        Raises:
            MalformedMessage: the request is malformed.
            ConfigError: a key is unknown or a value is out of range; nothing is changed then.
            RunFolderError: the change cannot be written to disk.
        """
        match values.get("set"), values.get("reset"):
            case None, None:
                pass
            case dict(wanted), None:
                self._book.change(wanted)
                self._take_up(sorted(map(str, wanted)))
            case None, True:
                self._book.reset()
                self._take_up(["all"])
            case None, list(keys):
                self._book.reset(map(str, keys))
                self._take_up(list(map(str, keys)))
            case _:
                raise MalformedMessage("the request about limits is malformed", fix=_FORM)
        now, before = self._book.limits, self._at_start
        return {
            "limits": now.model_dump(mode="json"),
            "changed": self._book.changed,
            "at_restart": sorted(key for key in AT_RESTART if getattr(now, key) != getattr(before, key)),
        }

    def _take_up(self, keys: list[str]) -> None:
        log.info("limits changed by the owner", keys=keys)
        self._changed()
