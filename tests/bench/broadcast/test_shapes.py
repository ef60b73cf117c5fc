from __future__ import annotations

import argparse

import pytest

from bench.broadcast import shapes


def test_the_factor_of_stripes_is_near_the_loss_of_whole_copies() -> None:
    parser = argparse.ArgumentParser()
    shapes.add_arguments(parser)
    figures = shapes.run(parser.parse_args(["--peers", "2000"])).figures
    for stripes in (4, 8, 16):
        assert figures[f"stripes_{stripes}"] == pytest.approx(figures[f"eta_{stripes}"], abs=0.05)
    assert figures["stripes_1"] == figures["tree"]
    assert figures["tree"] < figures["chain"] < figures["star"]
