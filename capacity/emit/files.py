"""Make the files of one tool for a plan, and write them into a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, assert_never

from capacity.emit import kubernetes, skypilot, terraform
from capacity.emit.chosen import ChosenRow, Files, chosen_rows
from capacity.inputs.pool.rows import Start
from capacity.questions.plan_json import PlanDocument
from rollcast import __version__
from rollcast.runtime.errors import ConfigError

Tool = Literal["skypilot", "kubernetes", "terraform"]

_STARTS: Mapping[Tool, Start] = {"skypilot": "sky", "kubernetes": "kubernetes", "terraform": "terraform"}


def files_for(document: PlanDocument, tool: Tool) -> tuple[Files, tuple[str, ...]]:
    """Return the files that start a plan's workers of one tool, and the names of the workers that they do not start.

    Raises:
        ConfigError: this tool starts none of the plan's workers.
    """
    rows, left_out = chosen_rows(document, _STARTS[tool])
    if not rows:
        raise ConfigError(
            f"the plan has no worker that {tool} starts",
            cause=f"none of its chosen workers has start = {_STARTS[tool]} in the pool",
            fix="set that column in the pool, and plan again",
        )
    return _files(tool, rows), left_out


def _files(tool: Tool, rows: tuple[ChosenRow, ...]) -> Files:
    match tool:
        case "skypilot":
            return skypilot.files_of(rows)
        case "kubernetes":
            return kubernetes.files_of(rows, f"rollcast-peer:{__version__}")
        case "terraform":
            return terraform.files_of(rows)
        case _:
            assert_never(tool)


def write_files(files: Files, folder: Path) -> None:
    """Write files into a folder, which is made if it is not there; a file that is there already stays.

    Raises:
        ConfigError: a file is there with another content, and none is written; or the disk refuses.
    """
    fix = "give another folder with --into"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.texts.items():
            path = folder / name
            if path.exists() and path.read_text() != text:
                raise ConfigError(f"{path} exists and differs", fix=f"{fix}, or remove it")
        for name, text in files.texts.items():
            (folder / name).write_text(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot write into {folder}", cause=str(error), fix=fix) from None
