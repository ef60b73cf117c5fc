"""The port that holes are punched from."""

from __future__ import annotations

import asyncio
import socket

import pytest

from peer.punching.port import Address, PunchPort, address_in


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("192.0.2.1:4000", ("192.0.2.1", 4000)),
        ("192.0.2.1:0", ("192.0.2.1", 0)),
        ("", None),
        ("192.0.2.1", None),
        ("192.0.2.1:65536", None),
        ("192.0.2.1:-1", None),
        ("192.0.2.1:²", None),
        ("example.org:80", None),
        ("[2001:db8::1]:80", None),
    ],
)
def test_only_addresses_that_routers_translate(text: str, found: Address | None) -> None:
    assert address_in(text) == found


async def test_two_ports_that_dial_each_other_have_one_connection() -> None:
    ports = [PunchPort("127.0.0.1") for _ in range(2)]
    came: asyncio.Queue[tuple[socket.socket, Address]] = asyncio.Queue()
    ports[1].listen(lambda sock, remote: came.put_nowait((sock, remote)))
    remotes = [("127.0.0.1", port.number) for port in ports]
    dialled = await ports[0].dialled(remotes[1])
    accepted, remote = await came.get()
    assert remote == remotes[0]
    with pytest.raises(OSError):  # noqa: PT011 - of which kind is the system's
        await ports[1].dialled(remotes[0])
    assert dialled.getsockname() == remotes[0]
    assert dialled.getpeername() == accepted.getsockname() == remotes[1]
    for one in (dialled, accepted):
        one.close()
    for port in ports:
        port.close()


async def test_nobody_is_let_in_but_while_it_listens() -> None:
    port = PunchPort("127.0.0.1")
    remote = ("127.0.0.1", port.number)
    came: asyncio.Queue[socket.socket] = asyncio.Queue()
    for _ in range(2):
        other = PunchPort("127.0.0.1")
        with pytest.raises(ConnectionRefusedError):
            await other.dialled(remote)
        for _ in range(2):  # the second time it listens already
            port.listen(lambda sock, _remote: came.put_nowait(sock))
        (await other.dialled(remote)).close()
        (await came.get()).close()
        port.deafen()
        other.close()
    port.close()


async def test_the_port_stays_the_same_and_can_be_asked_for() -> None:
    port = PunchPort("127.0.0.1")
    again = PunchPort("127.0.0.1", port.number)
    assert again.number == port.number
    one = port.bound()
    assert one.getsockname() == ("127.0.0.1", port.number)
    one.close()
    port.close()
    again.close()
