"""Name the run's gateways to a peer: the coordinator's answer to a join lists them, and the peer keeps the list."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollcast.runtime.errors import MalformedMessage
from rollcast.runtime.run_folder import write_atomically
from rollcast.wire.ids import PeerId

GATEWAYS_NAMED_MAX = 16
ADDRESS_PATTERN = r"^(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}$"
"""The form of a gateway's address: HOST:PORT."""
_ADDRESS = re.compile(ADDRESS_PATTERN.removesuffix("$"))
_FILE = "gateways.txt"
_FILE_BYTES_MAX = 8192


def in_turn(addresses: Sequence[str], peer_id: PeerId) -> tuple[str, ...]:
    """Return the addresses in the order in which this peer dials them: each begins with another one."""
    if not addresses:
        return ()
    first = int.from_bytes(hashlib.sha256(peer_id.encode()).digest()[:8], "big") % len(addresses)
    return (*addresses[first:], *addresses[:first])


def gateways_in(answer: dict[str, Any]) -> tuple[str, ...]:
    """Return the gateways that the answer to a join names; earlier releases name none.

    Raises:
        MalformedMessage: they are not a list of addresses, or too many.
    """
    named = answer.get("gateways", [])
    if not isinstance(named, list) or len(named) > GATEWAYS_NAMED_MAX or not all(map(_is_address, named)):
        raise MalformedMessage("the coordinator's answer names gateways in another form")
    return tuple(named)


def save_gateways(folder: Path, gateways: Sequence[str]) -> None:
    """Keep the list beside the credentials of the same join.

    Raises:
        OSError: it cannot be written.
    """
    if gateways:
        write_atomically(folder / _FILE, "".join(f"{address}\n" for address in gateways).encode("ascii"))
    else:
        (folder / _FILE).unlink(missing_ok=True)


def saved_gateways(folder: Path) -> tuple[str, ...]:
    """Return the list that was kept; empty if there is none."""
    try:
        with (folder / _FILE).open("rb") as file:
            lines = file.read(_FILE_BYTES_MAX).decode("ascii", errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(line for line in lines if _is_address(line))[:GATEWAYS_NAMED_MAX]


def _is_address(value: object) -> bool:
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None
