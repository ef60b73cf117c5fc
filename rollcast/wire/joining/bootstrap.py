"""List the places where a run's coordinator may be found, since a name, a router or an address may fail. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

PLACES_MOST = 8
"""Places of one coordinator at most."""

_HOST = r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]"
_FORM = re.compile(rf"(?P<host>{_HOST})(?::(?P<control>[0-9]{{1,5}}):(?P<http>[0-9]{{1,5}}))?")
PLACE_PATTERN = rf"^(?:{_HOST})(?::[0-9]{{1,5}}:[0-9]{{1,5}})?$"
"""The form of a further place in an invite and in a configuration: host, or host:control port:HTTP port."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """One place where the coordinator may be found.

    Args:
        http_url: the URL for joining, http://host:port or https://host:port.
        grpc_address: the address of the control port, host:port.
    """

    http_url: str
    grpc_address: str


def bootstraps(http_url: str, grpc_address: str, further: Iterable[str]) -> tuple[Bootstrap, ...]:
    """Return the places of an invite, its own first, and at most ``PLACES_MOST``.

    Args:
        further: texts of the form ``PLACE_PATTERN``; a place without ports has those of the first place.

    Raises:
        ValueError: a text does not have that form.
    """
    scheme, _, netloc = http_url.partition("://")
    http_port, control_port = netloc.rpartition(":")[2], grpc_address.rpartition(":")[2]
    found = [Bootstrap(http_url, grpc_address)]
    for text in further:
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is neither host nor host:control port:HTTP port")
        host, control, http = match["host"], match["control"] or control_port, match["http"] or http_port
        found.append(Bootstrap(f"{scheme}://{host}:{http}", f"{host}:{control}"))
    return tuple(dict.fromkeys(found))[:PLACES_MOST]
