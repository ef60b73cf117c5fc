"""Distinguish the copies of one identity by an instance id.

The id is stored beside the identity with a digest of the place: machine, host name, folder. A state folder that was
copied to another place, with a disk image, a volume or a backup, no longer matches the digest and gets a new id there.
The coordinator admits one instance of an identity at a time (coordinator/rpc/clones.py).
"""

from __future__ import annotations

import json
import secrets
import socket
from pathlib import Path

import structlog
from blake3 import blake3

from rollcast.runtime.run_folder import run_folder_error, write_atomically

log = structlog.get_logger()

FILE = "instance.json"
_BYTES_MAX = 4096
_ID_BYTES = 16
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))  # machine-id(5)


def instance_id(folder: Path, place: str | None = None) -> str:
    """Return this copy's id; it is created if there is none, or if the stored one comes from another place.

    Args:
        folder: the peer's state folder.
        place: text that identifies this place; None: that of this_place.

    Raises:
        RunFolderError: the new id cannot be written.
    """
    path = folder / FILE
    digest = blake3((this_place(folder) if place is None else place).encode()).hexdigest(_ID_BYTES)
    found, made_in = _read(path)
    if found and made_in == digest:
        return found
    if found:
        log.info("this state folder was copied from another place: it is a new instance of its identity")
    new = secrets.token_hex(_ID_BYTES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"instance_id": new, "place": digest}).encode(), mode=0o600)
    except OSError as error:
        raise run_folder_error(folder, error) from None
    return new


def this_place(folder: Path) -> str:
    """Return machine id, host name and folder, one per line.

    The host name is needed because containers of one image share a machine id, or have none.
    """
    machine = ""
    for path in _MACHINE_IDS:
        try:
            machine = machine or path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
    return "\n".join((machine, socket.gethostname(), str(folder.resolve())))


def _read(path: Path) -> tuple[str, str]:
    try:
        with path.open("rb") as file:
            values = json.loads(file.read(_BYTES_MAX))
        found, place = values["instance_id"], values["place"]
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""
    return (found, place) if isinstance(found, str) and isinstance(place, str) else ("", "")
