from __future__ import annotations

import argparse
import importlib.util
from contextlib import nullcontext

import pytest

from bench.broadcast import transports
from bench.wan import build
from rollcast.runtime.errors import MissingExtra


def _run(*words: str, mib: int = 2) -> dict[str, float]:
    parser = argparse.ArgumentParser()
    transports.add_arguments(parser)
    outcome = transports.run(parser.parse_args([*words, "--mib", str(mib), "--rounds", "1"]))
    assert ("mb_s_p2p" in outcome.missing) == (importlib.util.find_spec("libp2p") is None)
    return outcome.figures


@pytest.fixture(autouse=True)
def _beside_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no lock of the machine: other tests run beside these in any case, and a benchmark may take an hour."""
    monkeypatch.setattr(transports, "alone", nullcontext)


@pytest.mark.slow  # the test below measures each of them over a long link
def test_every_installed_transport_is_measured() -> None:
    figures = _run()
    assert min(figures.values()) > 0
    assert {"mb_s_raw", "mb_s_direct", "mb_s_steady_direct", "mb_per_core_s_direct"} <= figures.keys()


def test_every_transport_uses_a_long_link_and_none_exceeds_its_rate() -> None:
    try:
        build.require()
    except MissingExtra as missing:
        pytest.skip(missing.cause)
    figures = _run("--wan", "80:100", mib=4)
    shares = [value for key, value in figures.items() if key.startswith("link_share_")]
    assert min(shares) > 0
    assert figures["mb_s_direct"] > 0.5 * figures["mb_s_raw"], "its receive window grows with what the link can hold"
    assert max(share for key, share in figures.items() if key.startswith("link_share_") and "steady" not in key) < 1
