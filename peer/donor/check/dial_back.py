"""Find out whether other peers can dial this machine, by asking the coordinator to dial it back."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from peer.donor.install.join import LINK_PORT, ListenSettings, is_on_this_machine
from peer.reachability.link_speed import InviteHttp
from rollcast.runtime.errors import RollcastError
from rollcast.wire.joining.invite import Invite

_NONCE_BYTES = 16
_ANY = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class DialledBack:
    """The result of a dial-back.

    Args:
        port: port that was opened for it; 0: none could be opened.
        address: address under which the coordinator sees this machine; empty: unknown.
        reached: whether the coordinator could dial the port.
    """

    port: int
    address: str
    reached: bool


async def dialled_back(door: InviteHttp, port: int) -> DialledBack:
    """Listen on a port for a moment and let the coordinator dial it.

    Args:
        port: 0: the system chooses.

    Raises:
        RollcastError: the coordinator does not answer, or refuses.
    """
    nonce = secrets.token_hex(_NONCE_BYTES)

    async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(nonce.encode())
        writer.close()

    try:
        server = await asyncio.start_server(say, _ANY, port)
    except OSError:
        return DialledBack(0, "", False)
    async with server:
        bound = int(server.sockets[0].getsockname()[1])
        answer = await door.ask("POST", "/api/v1/speed/dial", {"port": bound, "nonce": nonce})
    return DialledBack(bound, str(answer.get("address", "")), answer.get("reached") is True)


async def listening_for(invite: Invite, port: int = LINK_PORT) -> ListenSettings:
    """Return where a new peer should listen: on loopback if the run is on this machine, otherwise on all interfaces.

    The address is advertised only if the coordinator could dial it; a machine that cannot be dialled dials the others
    itself.
    """
    if is_on_this_machine(invite):
        return ListenSettings()
    try:
        async with InviteHttp(invite) as door:
            found = await dialled_back(door, port)
    except RollcastError:  # a coordinator of an older release; the daemon checks later whether it can be dialled
        return ListenSettings(_ANY, port, "none")
    if not found.reached:
        return ListenSettings(_ANY, found.port, "none")
    host = f"[{found.address}]" if ":" in found.address else found.address
    return ListenSettings(_ANY, found.port, f"{host}:{found.port}")
