from __future__ import annotations

import stat
from pathlib import Path

import pytest

from peer.config import PeerConfig
from peer.donor.control.limits import FILE, OwnerLimits, OwnerLimitsBook
from peer.limits.config import LimitsConfig
from rollcast.runtime.errors import ConfigError


def configured(folder: Path) -> PeerConfig:
    return PeerConfig.model_validate(
        {"state_folder": folder, "link": {"upload_mbit_s_max": 5.0}, "limits": {"gpu_celsius_max": 80.0}}
    )


def test_without_changes_the_configuration_counts(tmp_path: Path) -> None:
    config = configured(tmp_path)
    book = OwnerLimitsBook(config)
    assert (book.limits.upload_mbit_s_max, book.limits.gpu_celsius_max, book.changed) == (5.0, 80.0, [])
    assert book.config == config
    assert OwnerLimits.model_fields.keys() > LimitsConfig.model_fields.keys()


def test_changes_outlive_the_process_and_may_take_a_limit_away(tmp_path: Path) -> None:
    book = OwnerLimitsBook(configured(tmp_path))
    book.change({"upload_mbit_s_max": 2, "compute_hours": ["mon-fri 22:00-07:00"]})
    book.change({"gpu_celsius_max": None})
    assert stat.S_ISREG((tmp_path / FILE).stat().st_mode)
    again = OwnerLimitsBook(configured(tmp_path))
    assert again.limits == book.limits
    assert again.changed == ["compute_hours", "gpu_celsius_max", "upload_mbit_s_max"]
    config = again.config
    assert (config.link.upload_mbit_s_max, config.limits.gpu_celsius_max) == (2.0, None)
    assert config.limits.compute_hours == ("mon-fri 22:00-07:00",)
    again.reset(["gpu_celsius_max"])
    assert OwnerLimitsBook(configured(tmp_path)).limits.gpu_celsius_max == 80.0
    again.reset()
    assert OwnerLimitsBook(configured(tmp_path)).changed == []


@pytest.mark.parametrize(
    "values",
    [{"upload_mbit_s_max": -1}, {"speed": 1}, {"compute_hours": ["someday"]}, {"vram_share_max": "much"}],
)
def test_what_is_no_limit_changes_nothing(tmp_path: Path, values: dict[str, object]) -> None:
    book = OwnerLimitsBook(configured(tmp_path))
    before = book.limits
    with pytest.raises(ConfigError, match="problem"):
        book.change({"download_mbit_s_max": 1, **values})
    assert (book.limits, book.changed) == (before, [])
    with pytest.raises(ConfigError, match="no limit 'speed'"):
        book.reset(["speed"])


@pytest.mark.parametrize("text", ["nonsense", "[1]", '{"upload_mbit_s_max": -1}', '{"speed": 1}'])
def test_a_damaged_file_ends_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ConfigError):
        OwnerLimitsBook(configured(tmp_path))
