"""Compute the golden case of relaying: one version from Virginia to the other nine of ten AWS regions (DT-FM's matrix).

``direct_s`` is the time over the slowest direct link, ``relayed_s`` the time over the tree of widest paths.
"""

from __future__ import annotations

import argparse

from bench.capacity.region_links import ten_regions
from bench.capacity.widest_path import direct_seconds, relayed_seconds, widest_paths
from bench.machine import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", default="Virginia")
    parser.add_argument("--bytes", type=float, default=8.0e9, help="bytes of one version")


def run(arguments: argparse.Namespace) -> Outcome:
    matrix = ten_regions()
    source = matrix.regions.index(arguments.source)
    tree = widest_paths(matrix.bytes_per_second, source)
    figures = {
        "direct_s": direct_seconds(arguments.bytes, matrix.bytes_per_second, source),
        "relayed_s": relayed_seconds(arguments.bytes, matrix.bytes_per_second, source),
        "relays": float(len(set(tree.parents.tolist()) - {source})),
    }
    return Outcome({"source": arguments.source, "bytes": arguments.bytes}, figures)
