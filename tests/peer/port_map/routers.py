"""Run routers for tests: with NAT-PMP, with PCP and with UPnP, all real servers on loopback."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar, Self

from aiohttp import web

_SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"
OUTSIDE_IP = "203.0.113.5"
OUTSIDE_IPV6 = "2a00:1450::7"


class _UdpRouter(asyncio.DatagramProtocol):
    """Answers datagrams while it is open, at its usual address if none is named."""

    address: ClassVar[str]

    def __init__(self) -> None:
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None

    @asynccontextmanager
    async def open(self, address: str = "", port: int = 0) -> AsyncIterator[Self]:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: self, local_addr=(address or self.address, port)
        )
        self.port = self._transport.get_extra_info("sockname")[1]
        try:
            yield self
        finally:
            self._transport.close()


class NatPmpRouter(_UdpRouter):
    """Keeps mappings of TCP ports: inside to (outside, lease)."""

    address = "127.0.0.1"

    def __init__(self) -> None:
        super().__init__()
        self.mapped: dict[int, tuple[int, int]] = {}
        self.lease_s_most = 7200
        self.result = 0
        self.deaf_to = 0  # so many packets are lost first
        self.requests = 0

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.requests += 1
        if self.requests <= self.deaf_to:
            return
        kind = data[1]
        answer = struct.pack("!BBHI", 0, 128 + kind, self.result, 7)
        if kind == 0:
            answer += socket.inet_aton(OUTSIDE_IP)
        else:
            inside, outside, lease_s = struct.unpack_from("!HHI", data, 4)
            lease_s = min(lease_s, self.lease_s_most)
            if lease_s:
                taken = {port for port, _ in self.mapped.values()}
                outside = outside if outside not in taken else outside + 1
                outside, _ = self.mapped.get(inside, (outside, 0))  # a request that is repeated changes nothing
                self.mapped[inside] = (outside, lease_s)
            else:
                self.mapped.pop(inside, None)
                outside = 0
            answer += struct.pack("!HHI", inside, outside, lease_s)
        assert self._transport is not None
        self._transport.sendto(b"\x00\x99nonsense", addr)  # type: ignore[arg-type]
        self._transport.sendto(answer, addr)  # type: ignore[arg-type]


class PcpRouter(_UdpRouter):
    """Keeps pinholes for TCP ports over IPv6 as RFC 6887 describes: inside port to (nonce, lease)."""

    address = "::1"

    def __init__(self) -> None:
        super().__init__()
        self.opened: dict[int, tuple[bytes, int]] = {}
        self.lease_s_most = 7200
        self.result = 0
        self.outside_ip = OUTSIDE_IPV6

    def datagram_received(self, data: bytes, addr: object) -> None:
        version, operation, lease_s, client = struct.unpack_from("!BB2xI16s", data)
        nonce, protocol, inside, outside, _ = struct.unpack_from("!12sB3xHH16s", data, 24)
        assert (version, operation, protocol, len(data)) == (2, 1, 6, 60)
        sender = addr[0] if isinstance(addr, tuple) else ""
        result, lease_s = self._decide(inside, nonce, min(lease_s, self.lease_s_most), client, sender)
        ip = socket.inet_pton(socket.AF_INET6, self.outside_ip)
        mapping = struct.pack("!12sB3xHH16s", nonce, 6, inside, outside if lease_s else 0, ip)
        other = struct.pack("!12sB3xHH16s", bytes(12), 6, inside, outside, ip)
        header = struct.pack("!BBxBII12x", 2, 129, result, lease_s, 7)
        assert self._transport is not None
        for answer in (b"\x02\x81nonsense", header + other, header + mapping):  # only the last is for this request
            self._transport.sendto(answer, addr)  # type: ignore[arg-type]

    def _decide(self, inside: int, nonce: bytes, lease_s: int, client: bytes, sender: str) -> tuple[int, int]:
        if self.result:
            return self.result, 1800
        if client != socket.inet_pton(socket.AF_INET6, sender):
            return 12, 1800  # ADDRESS_MISMATCH
        held, held_lease_s = self.opened.get(inside, (nonce, 0))
        if held != nonce:
            return 2, held_lease_s  # NOT_AUTHORIZED: section 11.3
        if lease_s:
            self.opened[inside] = (nonce, lease_s)
        else:
            self.opened.pop(inside, None)
        return 0, lease_s


class SsdpAnswerer(asyncio.DatagramProtocol):
    """Answers searches on one interface with a description's address."""

    def __init__(self, description: str) -> None:
        self._description = description
        self._transport: asyncio.DatagramTransport | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("239.255.255.250", 1900))
        group = socket.inet_aton("239.255.255.250") + socket.inet_aton("127.0.0.1")
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=sock)
        try:
            yield
        finally:
            self._transport.close()

    def datagram_received(self, data: bytes, addr: object) -> None:
        if not data.startswith(b"M-SEARCH"):
            return
        kind = "urn:schemas-upnp-org:device:InternetGatewayDevice:1"
        answer = f"HTTP/1.1 200 OK\r\nST: {kind}\r\nUSN: uuid:1::{kind}\r\nLOCATION: {self._description}\r\n\r\n"
        assert self._transport is not None
        self._transport.sendto(answer.encode(), addr)  # type: ignore[arg-type]


class UpnpRouter:
    """Keeps mappings of TCP ports: outside to (inside, host, lease)."""

    def __init__(self) -> None:
        self.mapped: dict[int, tuple[int, str, int]] = {}
        self.taken: set[int] = set()
        self.only_permanent = False
        self.description = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[UpnpRouter]:
        app = web.Application()
        app.router.add_get("/root.xml", self._root)
        app.router.add_post("/control", self._control)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.description = f"http://127.0.0.1:{runner.addresses[0][1]}/root.xml"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _root(self, _: web.Request) -> web.Response:
        service = (
            f"<service><serviceType>{_SERVICE}</serviceType><serviceId>urn:upnp-org:serviceId:WANIPConn1</serviceId>"
            "<controlURL>/control</controlURL><eventSubURL>/event</eventSubURL><SCPDURL>/scpd.xml</SCPDURL></service>"
        )
        devices = [("WANConnectionDevice:1", service), ("WANDevice:1", ""), ("InternetGatewayDevice:1", "")]
        inner = ""
        for name, services in devices:
            kind = f"<deviceType>urn:schemas-upnp-org:device:{name}</deviceType>"
            body = f"<serviceList>{services}</serviceList>" if services else f"<deviceList>{inner}</deviceList>"
            inner = f"<device>{kind}{body}</device>"
        return web.Response(text=f'<?xml version="1.0"?><root>{inner}</root>', content_type="text/xml")

    async def _control(self, request: web.Request) -> web.Response:
        body = await request.text()
        action = request.headers["SOAPAction"].strip('"').rpartition("#")[2]
        values = dict(re.findall(r"<(New\w+)[^>]*>([^<]*)</", body))
        match action:
            case "GetExternalIPAddress":
                return _answer(action, f"<NewExternalIPAddress>{OUTSIDE_IP}</NewExternalIPAddress>")
            case "GetStatusInfo":
                status = "<NewConnectionStatus>Connected</NewConnectionStatus><NewUptime>7</NewUptime>"
                return _answer(action, f"{status}<NewLastConnectionError>ERROR_NONE</NewLastConnectionError>")
            case "AddPortMapping":
                return self._add(action, values)
            case "DeletePortMapping":
                self.mapped.pop(int(values["NewExternalPort"]), None)
                return _answer(action, "")
        return _fault(401, "Invalid Action")

    def _add(self, action: str, values: dict[str, str]) -> web.Response:
        outside, lease_s = int(values["NewExternalPort"]), int(values["NewLeaseDuration"])
        assert values["NewProtocol"] == "TCP"
        if outside in self.taken:
            return _fault(718, "ConflictInMappingEntry")
        if lease_s and self.only_permanent:
            return _fault(725, "OnlyPermanentLeasesSupported")
        self.mapped[outside] = (int(values["NewInternalPort"]), values["NewInternalClient"], lease_s)
        return _answer(action, "")


def _answer(action: str, inner: str) -> web.Response:
    return _soap(f'<u:{action}Response xmlns:u="{_SERVICE}">{inner}</u:{action}Response>', 200)


def _fault(code: int, words: str) -> web.Response:
    detail = f"<errorCode>{code}</errorCode><errorDescription>{words}</errorDescription>"
    fault = f'<UPnPError xmlns="urn:schemas-upnp-org:control-1-0">{detail}</UPnPError>'
    return _soap(f"<s:Fault><faultcode>s:Client</faultcode><detail>{fault}</detail></s:Fault>", 500)


def _soap(inner: str, status: int) -> web.Response:
    envelope = f'<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>{inner}</s:Body></s:Envelope>'
    return web.Response(text=f'<?xml version="1.0"?>{envelope}', content_type="text/xml", status=status)
