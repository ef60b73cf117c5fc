from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from peer.port_map.component import default_gateway, gateway_in

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
