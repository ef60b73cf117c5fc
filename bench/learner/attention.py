"""Compile attention with its gradients for real accelerators, and show how its memory grows with the length of rows.

``DEVICES.TOKENS.kib_per_token``: temporary KiB of one layer on each device, per token of its row, by XLA's own figures;
32 query heads and 8 key heads of 128, several sequences in a row. ``DEVICES.growth``: the largest of these over that of
the shortest row of 2,048 tokens or more; a kernel that held scores or masks of whole rows would have the ratio of the
lengths. It needs the compilers of the extra ``ahead``.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bench.ahead.accelerators import ACCELERATORS, printed_by, why_not
from bench.machine import Outcome

ROW_TOKENS = (512, 2048, 8191, 8192, 32_768)
_DEVICES = ("h100x8", "v5p-2x2x4")
_LONG = 2048  # shorter rows are padded and have parts of a fixed size
_TIMEOUT_S = 1800.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--devices", action="append", choices=ACCELERATORS, help="only these; may be repeated")


def run(arguments: argparse.Namespace) -> Outcome:
    figures: dict[str, float] = {}
    missing: list[str] = []
    for name in arguments.devices or _DEVICES:
        if reason := why_not(ACCELERATORS[name]):
            print(f"{name}: {reason}", file=sys.stderr)
            missing.append(f"{name}.growth")
            continue
        tokens = [str(one) for one in ROW_TOKENS]
        compiled = printed_by("bench.ahead.compile_attention", [name, *tokens], ACCELERATORS[name], _TIMEOUT_S)
        figures |= growth(name, compiled)
    return Outcome({"row_tokens": list(ROW_TOKENS)}, figures, tuple(missing))


def growth(name: str, compiled: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of one kind of devices."""
    each = {one["row_tokens"]: one["temporary_bytes"] / 1024 / one["row_tokens"] for one in compiled}
    long = {tokens: kib for tokens, kib in each.items() if tokens >= _LONG}
    figures = {f"{name}.{tokens}.kib_per_token": kib for tokens, kib in each.items()}
    return figures | {f"{name}.growth": max(long.values()) / long[min(long)]}
