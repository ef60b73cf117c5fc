"""Check that every command, option and configuration key that the documents name exists."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cyclopts import CoercionError, CycloptsError, MissingArgumentError

from bench.__main__ import BENCHES
from capacity.inputs.demand_file import DemandFile
from rollcast.cli.files import Role, config_class
from rollcast.cli.main import app
from rollcast.runtime.config import describe
from rollcast.runtime.errors import RollcastError
from tests.test_documents import documents

ROOT = Path(__file__).parents[1]
_FENCED = re.compile(r"^ *```\w*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_PROGRAM = re.compile(r"(?:sudo |\.venv/bin/|[A-Z_]+=\S+ )*(rollcast|python -m bench|make) (.+)")
_COMMENT = re.compile(r"(?:\s{3,}|\s#\s).*$")
_PLACEHOLDER = re.compile(r"[A-Z]+|\.\.\.")
_FILE = re.compile(r"json|jsonl|js|mark|migrated|py|safetensors|sqlite")  # what follows the dot in a file's name
_KEY = re.compile(r"([a-z][a-z_]*(?:\.[a-z][a-z0-9_]*)+)(?: = .*)?")
# Role -> the sections in which its keys stand in a file of `rollcast up`.
_SECTIONS: dict[Role, tuple[str, ...]] = {
    "up": (),
    "coordinator": ("coordinator",),
    "gateway": (),
    "scorer": (),
    "cell": (),
    "learner": ("learner",),
    "peer": ("peer", "origin"),
    "sft": (),
}


def commands_of(document: Path) -> Iterator[tuple[str, str]]:
    """Yield program and arguments of each command that a document shows, with what is [optional]."""
    text = document.read_text().replace("\\\n", " ")
    prose = _FENCED.sub("", text)
    lines = "\n".join(_FENCED.findall(text)).splitlines()
    lines += re.findall(r"^    (\S.*)$", prose, re.MULTILINE)
    lines += [" ".join(span.split()) for span in _SPAN.findall(prose)]
    for line in lines:
        if found := _PROGRAM.fullmatch(line.strip().removeprefix("$ ")):
            arguments = re.split(r" [|>] |; ", _COMMENT.sub("", found[2]))[0]
            yield found[1], arguments.replace("[", "").replace("]", "").strip()


def problem_of(program: str, arguments: str) -> str:
    """Return why a command cannot be typed like this; empty if it can, perhaps with more arguments."""
    words = shlex.split(arguments)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            if program == "make":
                return _missing_targets(words)
            if program == "rollcast":
                _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
                return _unknown_settings(words, bound.arguments)
            if not any(map(_PLACEHOLDER.fullmatch, words)):
                _bench_parser().parse_args(words)
    except MissingArgumentError:
        return ""
    except CoercionError as error:
        return "" if any(map(_PLACEHOLDER.fullmatch, words)) else str(error)
    except (CycloptsError, RollcastError, argparse.ArgumentError) as error:
        return str(error)
    except SystemExit as ended:
        return "" if ended.code in (0, None) else "the command line is wrong"
    return ""


def _missing_targets(words: list[str]) -> str:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    return ", ".join(word for word in words if "=" not in word and word not in targets)


def _unknown_settings(words: list[str], arguments: dict[str, Any]) -> str:
    """Return the keys of `--set section.key=value` that the role of the command does not have."""
    role: Any = "peer" if words[:2] == ["peer", "run"] else words[0]
    if role not in _SECTIONS:
        return ""
    given = (one.partition("=")[0].strip() for one in arguments.get("setting", ()))
    return ", ".join(key for key in given if key not in keys_of(role))


@cache
def _bench_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(exit_on_error=False)
    commands = parser.add_subparsers(required=True)
    for folder, benches in BENCHES.items():
        for name in benches:
            command = commands.add_parser(name)
            command.add_argument("--json", action="store_true")
            importlib.import_module(f"bench.{folder}.{name}").add_arguments(command)
    return parser


@cache
def keys_of(role: Role) -> frozenset[str]:
    """Return a role's keys and sections, without the kinds of sections (`task{gym}.path` is `task.path`)."""
    keys = {re.sub(r"\{[^}]*\}|\[\]", "", key) for key, _, _ in describe(config_class(role))}
    return frozenset(keys | {key[:at] for key in keys for at, letter in enumerate(key) if letter == "."})


@cache
def every_key() -> frozenset[str]:
    """Return the keys of all roles, in their own files and in that of `rollcast up`, and those of a plan's demand."""
    of_roles = (
        f"{section}{key}"
        for role, sections in _SECTIONS.items()
        for section in ("", *(f"{name}." for name in sections))
        for key in keys_of(role)
    )
    return frozenset([*of_roles, *(key for key, _, _ in describe(DemandFile))])


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_of_the_documents_can_be_typed(document: Path) -> None:
    found = {f"{program} {arguments}": problem_of(program, arguments) for program, arguments in commands_of(document)}
    wrong = [f"{command}: {why}" for command, why in found.items() if why]
    assert not wrong, "\n".join(["", *wrong])


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_key_of_the_documents_exists(document: Path) -> None:
    prose = _FENCED.sub("", document.read_text())
    keys = {found[1] for span in _SPAN.findall(prose) if (found := _KEY.fullmatch(" ".join(span.split())))}
    sections = {key.partition(".")[0] for key in every_key()}
    named = {key for key in keys if key.partition(".")[0] in sections and not _FILE.fullmatch(key.rpartition(".")[2])}
    assert not named - every_key()


@pytest.mark.parametrize(
    ("program", "arguments", "is_right"),
    [
        ("rollcast", "peer status --watch", True),
        ("rollcast", "peer check", True),
        ("rollcast", "peers", False),
        ("rollcast", "peer status --wathc", False),
        ("rollcast", "up run.toml --set coordinator.run.steps=5", True),
        ("rollcast", "up run.toml --set run.steps=5", False),
        ("python -m bench", "demo --json", True),
        ("python -m bench", "demo --jsn", False),
        ("make", "demo", True),
        ("make", "dmo", False),
    ],
)
def test_the_check_tells_commands_apart(program: str, arguments: str, is_right: bool) -> None:
    assert (problem_of(program, arguments) == "") == is_right
