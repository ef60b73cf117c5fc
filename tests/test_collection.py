"""Test that `make test` collects every test on a fresh machine, where no extra but `dev` is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.without_extras import ROOT, hidden_distributions, installed_distributions


def test_only_what_dev_does_not_install_is_hidden() -> None:
    hidden = hidden_distributions()
    assert {"datasets", "gpuhunt", "libp2p", "skypilot", "torch", "transformers", "wandb"} <= hidden
    assert hidden.isdisjoint({"rollcast", "aiohttp", "jax", "pytest", "tensorboardx", "tokenizers", "zeroconf"})


@pytest.mark.timeout(300)  # the whole suite is imported, which takes 10 s on an idle machine
def test_every_module_is_collected_without_optional_extras() -> None:
    if not installed_distributions() & hidden_distributions():
        pytest.skip("none of these packages is installed: this run has collected every module without them")
    plugins = ("-p", "tests.without_extras", "-p", "no:cacheprovider")
    # Asserts do not run here, and rewriting those of the whole suite takes as long as importing it.
    command = (sys.executable, "-m", "pytest", "--collect-only", "-qq", "--assert=plain", *plugins)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280.0, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
