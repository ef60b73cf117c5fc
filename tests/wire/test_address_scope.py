from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.wire.address_scope import Scope, host_and_port, is_ip, may_be_named, plain_host, scope_of, with_port


@pytest.mark.parametrize(
    ("host", "scope"),
    [
        *((host, Scope.LOOPBACK) for host in ("127.0.0.1", "127.8.9.1", "::1", "[::1]", "::ffff:127.0.0.1")),
        *((host, Scope.LOOPBACK) for host in ("64:ff9b::7f00:1", "2002:7f00:1::")),
        *((host, Scope.LINK_LOCAL) for host in ("169.254.169.254", "fe80::1", "fe80::1%eth0")),
        *((host, Scope.PRIVATE) for host in ("10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd00::1")),
        *((host, Scope.NOWHERE) for host in ("0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "ff02::1", "255.255.255.255")),
        *((host, Scope.PUBLIC) for host in ("8.8.8.8", "2606:4700::1", "a.example", "127.1", "2130706433")),
    ],
)
def test_scopes(host: str, scope: Scope) -> None:
    assert scope_of(host) is scope


@pytest.mark.parametrize(
    ("host", "plain"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:DB8::0:1", "2001:db8::1"),
        ("a.example", "a.example"),
    ],
)
def test_one_host_has_one_form(host: str, plain: str) -> None:
    assert plain_host(host) == plain


def test_an_address_is_named_where_it_leads_as_far_as_the_coordinator_is() -> None:
    order = [Scope.LOOPBACK, Scope.LINK_LOCAL, Scope.PRIVATE, Scope.PUBLIC]
    for index, home in enumerate(order):
        assert [one for one in order if may_be_named(one, home)] == order[index:]
        assert not may_be_named(Scope.NOWHERE, home)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a.example:1", ("a.example", 1)),
        ("192.0.2.1:65535", ("192.0.2.1", 65535)),
        ("[fe80::1%eth0]:4", ("fe80::1%eth0", 4)),
        *((text, None) for text in ("", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:1 ", "::1:4", "a b:1", "a/b:1")),
        *((text, None) for text in ("http://127.0.0.1:80", "user@host:1", "host#x:1", "host?x:1", "a:٤")),
    ],
)
def test_host_and_port(text: str, parsed: tuple[str, int] | None) -> None:
    assert host_and_port(text) == parsed


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "run.example.org"])
def test_what_is_written_is_parsed(host: str) -> None:
    assert host_and_port(with_port(host, 7400)) == (host, 7400)


@given(st.ip_addresses())
def test_every_ip_address_has_a_scope(ip: object) -> None:
    assert is_ip(str(ip))
    assert scope_of(str(ip)) in Scope
