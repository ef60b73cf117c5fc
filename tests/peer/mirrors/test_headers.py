from __future__ import annotations

from pathlib import Path

import pytest

from peer.mirrors.headers import MirrorHeaders
from rollcast.runtime.errors import ConfigError

FILE = """
["https://a.example/run/"]
Authorization = "Bearer s3cret"
["https://a.example/run/special/"]
X-Key = "1"
"""


def read(tmp_path: Path, text: str) -> MirrorHeaders:
    path = tmp_path / "headers.toml"
    path.write_text(text)
    return MirrorHeaders.read(path)


def test_the_longest_prefix_that_fits_gives_the_headers(tmp_path: Path) -> None:
    headers = read(tmp_path, FILE)
    assert headers.of("https://a.example/run/7/0.data") == {"Authorization": "Bearer s3cret"}
    assert headers.of("https://a.example/run/special/7/0.data") == {"X-Key": "1"}
    for other in ("https://a.example/", "https://a.example.evil/run/x", "http://a.example/run/x", "https://b/run/x"):
        assert headers.of(other) == {}
    assert "s3cret" not in repr(headers)


@pytest.mark.parametrize(
    "text",
    [
        '["https://a.example"]\nA = "s3cret"',
        '["https://a.example/run"]\nA = "s3cret"',
        '["ftp://a.example/"]\nA = "s3cret"',
        '["https://a.example/"]\nA = 5',
        '["https://a.example/"]\nA = "s3cret\\r\\nB: c"',
        '["https://a.example/"]\n"A b" = "s3cret"',
        '["https://a.example/"]\nRange = "s3cret"',
        '"https://a.example/" = "s3cret"',
        "s3cret",
    ],
)
def test_a_file_of_another_form_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert "s3cret" not in str(caught.value)


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        MirrorHeaders.read(tmp_path / "no.toml")
