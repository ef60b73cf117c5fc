"""Test the random streams of a simulation."""

from __future__ import annotations

from random import Random

from rollcast.sim.kernel.rng import lognormal


def test_the_compiled_distribution_is_that_of_the_library() -> None:
    ours, library = Random(7), Random(7)
    for number in range(1000):
        assert lognormal(ours, 0.1 + number / 500) == library.lognormvariate(0.0, 0.1 + number / 500)
