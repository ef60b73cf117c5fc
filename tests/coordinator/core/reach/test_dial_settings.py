"""Nobody has third parties dialled."""

from __future__ import annotations

import pytest

from coordinator.core.reach.dial_settings import DialBackSettings, is_numeric


@pytest.mark.parametrize(
    ("address", "host", "networks", "may"),
    [
        ("192.0.2.1", "192.0.2.1", (), True),
        ("192.0.2.2", "192.0.2.1", (), False),
        ("192.0.2.1", "", (), False),
        ("198.51.100.7", "192.0.2.1", ("198.51.100.0/24",), True),
        ("198.51.101.7", "192.0.2.1", ("198.51.100.0/24", "2001:db8::/32"), False),
        ("2001:db8::1", "2001:db8:0::1", (), True),
        ("2001:db8::1", "192.0.2.1", (), False),
    ],
)
def test_only_the_host_that_asks_and_what_the_operator_allows(
    address: str, host: str, networks: tuple[str, ...], may: bool
) -> None:
    assert DialBackSettings(networks=networks).allow(address, host) is may


def test_addresses_are_no_names() -> None:
    assert is_numeric("192.0.2.1")
    assert is_numeric("2001:db8::1")
    assert not is_numeric("example.org")
    assert not is_numeric("")
