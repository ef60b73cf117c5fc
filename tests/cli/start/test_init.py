from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from rollcast.cli.files import guess_role, load
from rollcast.cli.start.init import EXAMPLES, STARTS, files_of, init
from rollcast.runtime.errors import ConfigError


def test_every_starting_point_has_its_folder() -> None:
    assert {start.folder for start in STARTS.values()} <= {path.name for path in EXAMPLES.iterdir() if path.is_dir()}


@pytest.mark.parametrize("name", STARTS)
def test_a_starting_point_is_valid_where_it_is_written(name: str, tmp_path: Path) -> None:
    assert init(name, into=tmp_path / "new") == 0
    written = sorted((tmp_path / "new").iterdir())
    assert [path.name for path in written] == [path.name for path in files_of(STARTS[name])]
    configurations = [path for path in written if path.suffix == ".toml"]
    assert configurations
    for path in configurations:
        if name != "plan":
            load(path, guess_role(path))
        assert path.read_text().startswith("# ")
        assert tomllib.loads(path.read_text())


def test_nothing_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("mine")
    with pytest.raises(ConfigError, match=r"run.toml exists already"):
        init("jsonl", into=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_a_folder_that_cannot_be_made_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="cannot write into") as caught:
        init("jsonl", into=tmp_path / "file" / "new")
    assert "--into" in caught.value.fix


def test_an_unknown_name_lists_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        init("json", into=tmp_path)
    assert caught.value.fix.startswith("did you mean jsonl?")
    assert "donor-fleet" in caught.value.fix
    assert init() == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == list(STARTS)
    assert init(json_output=True) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(STARTS)


def test_what_comes_next_begins_in_the_folder_of_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init("jsonl", into=tmp_path / "my run")
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == f"    cd '{tmp_path}/my run'"
    assert lines[4] == "    rollcast config validate run.toml"
