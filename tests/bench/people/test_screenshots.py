from __future__ import annotations

import io
import random

import pytest
from PIL import Image

from bench.people.screenshots import BYTES_MAX, DASHBOARD, DONOR, ROOT, small


def noise() -> bytes:
    """A picture that cannot be packed."""
    written = io.BytesIO()
    Image.frombytes("RGB", (100, 100), random.Random(7).randbytes(30_000)).save(written, "PNG")
    return written.getvalue()


def test_colours_are_kept_where_there_is_room() -> None:
    given = noise()
    same = Image.open(io.BytesIO(small(given)))
    assert same.convert("RGB").tobytes() == Image.open(io.BytesIO(given)).tobytes()
    fewer = small(given, bytes_max=15_000)
    assert len(fewer) <= 15_000 < len(small(given))
    assert Image.open(io.BytesIO(fewer)).size == (100, 100)
    with pytest.raises(ValueError, match="too large"):
        small(given, bytes_max=100)


def test_the_pictures_are_there_and_small() -> None:
    for picture in (*DASHBOARD, *DONOR):
        path = ROOT / "docs" / "pictures" / f"{picture.name}.png"
        assert 0 < path.stat().st_size <= BYTES_MAX
        with Image.open(path) as opened:
            assert opened.size == (picture.width, picture.height)
