from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from peer.port_map.gateway import default_gateway, default_gateway_ipv6, gateway_in, gateway_in_ipv6

HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
LAN = "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"


def test_the_default_route_with_the_lowest_metric_counts() -> None:
    wlan = "wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
    cable = "eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    assert gateway_in(HEAD + LAN + wlan + cable) == "192.0.2.1"
    assert gateway_in(HEAD + LAN + wlan) == "192.168.1.1"
    assert gateway_in(HEAD + LAN) == ""


def test_a_system_without_the_table_has_none(tmp_path: Path) -> None:
    assert default_gateway(tmp_path / "none") == ""


@given(st.text(max_size=200))
def test_nonsense_is_no_gateway(text: str) -> None:
    assert gateway_in(HEAD + text) == "" or text


NONE = "0" * 32
ROUTER_LINK_LOCAL = "fe800000000000000000000000000001"
ROUTER_GLOBAL = "20010db8000000000000000000000001"


def route(destination: str, length: str, gateway: str, metric: str, flags: str, interface: str) -> str:
    return f"{destination} {length} {NONE} 00 {gateway} {metric} 00000001 00000000 {flags} {interface:>8}\n"


def test_the_router_of_ipv6_has_its_interface_if_its_address_needs_one() -> None:
    lan = route("20010db8000000000000000000000000", "40", NONE, "00000100", "00000001", "eth0")
    wlan = route(NONE, "00", ROUTER_GLOBAL, "00000400", "00000003", "wlan0")
    cable = route(NONE, "00", ROUTER_LINK_LOCAL, "00000064", "00450003", "eth0")
    unreachable = route(NONE, "00", NONE, "ffffffff", "00200200", "lo")
    assert gateway_in_ipv6(lan + wlan + cable + unreachable) == "fe80::1%eth0"
    assert gateway_in_ipv6(lan + wlan + unreachable) == "2001:db8::1"
    assert gateway_in_ipv6(lan + unreachable) == ""


def test_a_system_without_the_tables_has_no_router_of_ipv6(tmp_path: Path) -> None:
    assert default_gateway_ipv6(tmp_path / "none") == ""


@given(st.text(max_size=300))
def test_nonsense_is_no_router_of_ipv6(text: str) -> None:
    assert gateway_in_ipv6(text) == "" or text
