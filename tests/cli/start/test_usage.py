"""Test what a command line that cannot be parsed answers: one error with a code, and what to write instead."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cyclopts import CycloptsError

from rollcast.cli.main import app
from rollcast.cli.start.usage import usage_error


def answer(*words: str) -> str:
    with pytest.raises(CycloptsError) as raised:
        app(words, exit_on_error=False, print_error=False)
    return str(usage_error(raised.value))


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        ("status", "there is no command `rollcast status`", "`rollcast run`, `rollcast workers`"),
        ("plam", "there is no command `rollcast plam`", "`rollcast --help` lists the commands"),
        ("capacity plam", "there is no command `rollcast capacity plam`", "did you mean `rollcast capacity plan`"),
        ("invite lst", "there is no command `rollcast invite lst`", "did you mean `rollcast invite list`?"),
        ("learner", "`rollcast learner` lacks CONFIG", "write `rollcast learner CONFIG`. CONFIG: Configuration file"),
        ("backup runs/a", "`rollcast backup` lacks TARGET", "write `rollcast backup RUN_FOLDER TARGET`"),
        ("up a.toml --set", "`rollcast up` lacks the value of --set", "write `rollcast up --set VALUE`"),
        ("up a.toml b.toml", "`rollcast up` does not take the argument 'b.toml'", "leave it out"),
        ("capacity diff a b --json", "`rollcast capacity diff` has no option --json", "write `--format json`"),
        ("up a.toml --pla", "unknown option: --pla. Did you mean --plain?", "`rollcast up --help` lists"),
        (
            "capacity price shed 0.5",
            'invalid value for USD-PER-HOUR: unable to convert "shed" into float',
            "write `rollcast capacity price USD-PER-HOUR`; `rollcast capacity price --help` lists",
        ),
        ("capacity plan --save a", "`rollcast capacity plan` has no option --save", "write `--out FILE`"),
        ("sim", "there is no command `rollcast sim`", "did you mean `rollcast simulate`?"),
        ("simulate --peers many", "--peers takes a whole number, not 'many'", "simulate --help"),
        ("capacity plan --staleness 2.5", "--staleness takes a whole number, not '2.5'", "capacity plan --help"),
    ],
)
def test_errors(words: str, what: str, fix: str) -> None:
    first, last = answer(*words.split()).splitlines()
    assert first == f"RC101: {what}"
    assert last.startswith("  fix:   ")
    assert fix in last


def test_an_unknown_command_imports_no_group() -> None:
    """Comparing the names of all commands by loading them took two seconds."""
    code = (
        "import sys\nsys.argv = ['rollcast', 'peeer']\nfrom rollcast.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert ended.code == 64, ended.code\n"
        "assert 'rollcast.cli.peer.app' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "did you mean `rollcast peer`?" in result.stderr
