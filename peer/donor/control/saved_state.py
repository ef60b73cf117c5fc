"""The donor's state that survives restarts: the owner's last request, and this month's traffic."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import structlog

from peer.limits.decide import OwnerRequest, Wish
from peer.limits.quota import MonthUse
from rollcast.runtime.run_folder import run_folder_error, write_atomically

log = structlog.get_logger()

FILE = "donor.json"
_BYTES_MAX = 65536


class SavedState:
    """A small JSON file in the state folder.

    A file that cannot be read is logged and treated as absent: a damaged file must not keep the machine from working.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.asked, self.use = self._read()

    def save(self, asked: OwnerRequest, use: MonthUse) -> None:
        """Write both values if they changed; they are durable once this returns.

        Raises:
            RunFolderError: the file cannot be written.
        """
        if (asked, use) == (self.asked, self.use):
            return
        values = {
            "wish": asked.wish,
            "until": None if asked.until is None else asked.until.isoformat(),
            "month": use.month,
            "sent_bytes": use.sent_bytes,
            "received_bytes": use.received_bytes,
            "other_months": [[other.month, other.sent_bytes, other.received_bytes] for other in use.others],
        }
        try:
            write_atomically(self._path, json.dumps(values).encode())
        except OSError as error:
            raise run_folder_error(self._path.parent, error) from None
        self.asked, self.use = asked, use

    def _read(self) -> tuple[OwnerRequest, MonthUse]:
        try:
            with self._path.open("rb") as file:
                values = json.loads(file.read(_BYTES_MAX))
            until = None if values["until"] is None else datetime.fromisoformat(values["until"])
            if values["wish"] not in get_args(Wish):
                raise ValueError(f"no wish {values['wish']!r}")
            others = tuple(_use(*other) for other in values.get("other_months", []))
            use = _use(values["month"], values["sent_bytes"], values["received_bytes"], others)
        except FileNotFoundError:
            return OwnerRequest(), MonthUse()
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the owner's saved request cannot be read and is ignored", file=FILE, cause=str(error))
            return OwnerRequest(), MonthUse()
        return OwnerRequest(values["wish"], until), use


def _use(month: object, sent_bytes: Any, received_bytes: Any, others: tuple[MonthUse, ...] = ()) -> MonthUse:
    return MonthUse(str(month), int(sent_bytes), int(received_bytes), others)
