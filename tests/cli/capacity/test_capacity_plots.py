from __future__ import annotations

from pathlib import Path

import pytest

from rollcast.cli.capacity import plan
from tests.cli.capacity.capacity_calls import call
from tests.cli.capacity.small_pool import small_pool


def test_utilisation_is_drawn_against_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[float, float | None]] = []
    draw = plan.utilisation_against_workers

    def keep(path: Path, curve: list[plan.Point], chosen: int, subtitle: str) -> None:
        drawn.extend((point.x, point.y) for point in curve)
        draw(path, curve, chosen, subtitle)

    monkeypatch.setattr(plan, "utilisation_against_workers", keep)
    monkeypatch.setattr(plan, "_POINTS", 3)
    assert call(capsys, "plan", *small_pool(tmp_path), "--plot", str(tmp_path / "u.svg")).status == 0
    assert (tmp_path / "u.svg").read_text().startswith("<?xml")
    assert drawn[0] == (0, 0.0)
    assert drawn[-1][1] == pytest.approx(1.0, abs=0.1)
