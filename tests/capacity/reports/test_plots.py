from __future__ import annotations

import struct
from pathlib import Path
from xml.etree import ElementTree

from capacity.reports.plots import (
    Moment,
    Point,
    cost_against_broadcast,
    cost_against_staleness,
    timeline,
    utilisation_against_workers,
)

CURVE = [Point(2, None), Point(3, 30.0), Point(4, 24.0), Point(5, 23.5)]


def _draw_all(path: Path, suffix: str) -> list[Path]:
    paths = [path / f"{number}{suffix}" for number in range(4)]
    cost_against_staleness(paths[0], {"stripes=8": CURVE, "tree": CURVE[:1]}, "8 workers")
    utilisation_against_workers(paths[1], [Point(k, min(1.0, k / 6)) for k in range(9)], 6, "8 workers")
    cost_against_broadcast(paths[2], {"stripes=8": [Point(30, 0.4, "S=4"), Point(60, None, "S=2")]}, "8 workers")
    timeline(paths[3], [Moment(3600.0 * hour, hour % 3, 1.0, 0.9) for hour in range(6)], "6 hours")
    return paths


def test_png_is_drawn(tmp_path: Path) -> None:
    for path in _draw_all(tmp_path, ".png"):
        head = path.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", head[16:24])
        assert width > 600
        assert height > 400


def test_svg_is_drawn_and_is_xml(tmp_path: Path) -> None:
    for path in _draw_all(tmp_path, ".svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
