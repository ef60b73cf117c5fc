from __future__ import annotations

import argparse

import pytest

from bench.broadcast import golden


def test_the_golden_case_is_reproduced() -> None:
    parser = argparse.ArgumentParser()
    golden.add_arguments(parser)
    figures = golden.run(parser.parse_args([])).figures
    assert figures["direct_s"] == pytest.approx(176, abs=0.5)
    assert figures["relayed_s"] == pytest.approx(92, abs=0.5)
