"""Test a router that is known by its link-local address alone, as most are, between two network namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

ROUTER, MACHINE = (f"rollcast-pcp-{name}-{os.getpid()}" for name in ("router", "machine"))


def ip(*arguments: str, check: bool = True) -> int:
    return subprocess.run(["ip", *arguments], capture_output=True, check=check).returncode


def may_make_namespaces() -> bool:
    if shutil.which("ip") is None or ip("netns", "add", ROUTER, check=False):
        return False
    return not ip("netns", "del", ROUTER, check=False)


@pytest.fixture
def _home() -> Iterator[None]:
    """Connect a machine to its router, which announces no more than its link-local address."""
    for name in (ROUTER, MACHINE):
        ip("netns", "add", name)
        ip("netns", "exec", name, "sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad")
    try:
        ip("-n", ROUTER, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", MACHINE)
        for name, addresses in ((ROUTER, ("fe80::1/64", "2a00:1450::1/64")), (MACHINE, ("2a00:1450::7/64",))):
            ip("-n", name, "link", "set", "eth0", "up")
            for address in addresses:
                ip("-n", name, "address", "add", address, "dev", "eth0", "nodad")
        ip("-n", MACHINE, "route", "add", "default", "via", "fe80::1", "dev", "eth0")
        yield
    finally:
        for name in (ROUTER, MACHINE):
            ip("netns", "del", name, check=False)


def started(namespace: str, role: str) -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "tests.peer.port_map.in_namespace", role]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str], line: str = "") -> str:
    """Return the next line of a process, which goes on once it is sent one."""
    assert process.stdin is not None
    assert process.stdout is not None
    if line:
        process.stdin.write(line)
        process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.e2e
@pytest.mark.usefixtures("_home")
@pytest.mark.skipif(not may_make_namespaces(), reason="needs ip and the right to make network namespaces")
def test_a_pinhole_is_opened_and_closed_at_the_router_of_the_default_route() -> None:
    with started(ROUTER, "router") as router, started(MACHINE, "machine") as machine:
        assert told(router) == "ready"
        assert told(machine, "\n") == "((7420, 7420),)"
        assert told(router, "\n") == "[7420]"
        assert told(machine, "\n") == ""  # it has ended
        assert told(router, "\n") == "[]"
