"""Test the limits with which a new donor's machine begins, and what its owner is told."""

from __future__ import annotations

import tomllib
from pathlib import Path

from peer.config import PeerConfig
from peer.donor.install.first_limits import WHAT_LEAVES, FirstLimits, first_limits
from peer.donor.install.join import ListenSettings, PeerPaths, new_configuration
from peer.limits.readings import Readings
from rollcast.runtime.config import parse_config

ROOT = Path(__file__).parents[4]


def configured(limits: FirstLimits) -> PeerConfig:
    places = PeerPaths(Path("/c/peer.toml"), Path("/s"))
    text = new_configuration(places, "attic", ListenSettings(), None, limits)
    return parse_config(tomllib.loads(text), PeerConfig, source="peer.toml")


def test_half_of_the_upload_and_the_owners_own_programs_come_first() -> None:
    limits = first_limits(Readings(cpu_celsius=50.0, gpu_celsius=40.0), 2_500_000.0)
    config = configured(limits)
    assert config.link.upload_mbit_s_max == 10.0
    kept = config.limits
    assert (kept.others_cpu_share_max, kept.battery_share_min) == (0.5, 1.0)
    assert (kept.cpu_celsius_max, kept.gpu_celsius_max) == (90.0, 83.0)
    first, second, third = limits.lines()
    assert first == "uploads at most 10 Mbit/s, half of the 20 measured"
    assert second.startswith("pauses while other programs use over 50 % of the processor, on battery, above 90 °C")
    assert "rollcast peer limits set" in third


def test_a_temperature_that_cannot_be_read_is_not_limited() -> None:
    kept = configured(first_limits(Readings(), None)).limits
    assert (kept.cpu_celsius_max, kept.gpu_celsius_max) == (None, None)
    assert configured(FirstLimits()).limits.others_cpu_share_max is None
    assert FirstLimits().lines() == ()


def test_command_page_and_guide_say_the_same_about_what_leaves_the_machine() -> None:
    for path in ("peer/donor/page/pages/machine.js", "docs/donor.md"):
        assert WHAT_LEAVES in " ".join((ROOT / path).read_text().split()), path
