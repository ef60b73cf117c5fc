"""Explain what is wrong with a command line: an unknown command or option, a missing or superfluous argument."""

from __future__ import annotations

import difflib

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from rollcast.runtime.errors import ConfigError

#: Words that people type as commands of `rollcast` -> what they look for.
_MEANT = {
    "status": "`rollcast run`, `rollcast workers` and `rollcast broadcast status` show a run, `rollcast peer status` a"
    " donor's peer",
    "start": "`rollcast up FILE.toml` runs everything on this machine, `rollcast peer join INVITE` a donor's peer",
    "train": "`rollcast up FILE.toml` trains by RL, `rollcast sft FILE.toml` on examples",
    "stop": "Ctrl-C stops `rollcast up`, `rollcast run finish` ends a run early, `rollcast peer finish` a donor's peer",
    "continue": "`rollcast up --continue RUN_FOLDER` goes on with a run that was stopped or restored",
    "origin": "`rollcast peer run FILE.toml` runs the origin, too",
    "logs": "`rollcast config paths` prints where a run's logs are, `rollcast peer logs` shows those of a donor's peer",
    "validate": "`rollcast config validate FILE.toml` checks a file",
    "plan": "`rollcast capacity plan` chooses machines, `rollcast plan-memory FILE.toml` estimates memory",
    "set": "`rollcast capacity set` changes S, kappa and the budget of a run",
    **{word: f"`rollcast peer {word}` does this for a donor's peer" for word in ("join", "leave", "check")},
    **{
        word: f"`rollcast run {word}` does this for a run, `rollcast peer {word}` for a donor's peer"
        for word in ("pause", "resume", "finish")
    },
    "limits": "`rollcast capacity set` changes the limits of a run, `rollcast peer limits` those of a donor's peer",
}


_PREFIX_LEAST = 3  # letters of a command's beginning that are taken for it
#: Options that people type where a command writes a file -> --out.
_SAVE = ("--save", "--output", "-o")


def usage_error(error: CycloptsError) -> ConfigError:
    """Return the error to print for a command line that cannot be parsed."""
    command = " ".join(("rollcast", *(error.command_chain or ())))
    match error:
        case UnknownCommandError(unused_tokens=[word, *_]):
            return _unknown_command(error, command, word)
        case UnusedCliTokensError(unused_tokens=[word, *_]):
            if _close(error, word):
                return _unknown_command(error, command, word)
            return ConfigError(
                f"`{command}` does not take the argument {word!r}",
                fix=f"leave it out; quote a value that contains spaces; `{command} --help` lists the arguments",
            )
        case UnknownOptionError() if error.token.keyword == "--json" and _has(error, "--format"):
            return ConfigError(f"`{command}` has no option --json", fix="write `--format json`")
        case UnknownOptionError() if error.token.keyword in _SAVE and _has(error, "--out"):
            return ConfigError(f"`{command}` has no option {error.token.keyword}", fix="write `--out FILE`")
        case MissingArgumentError() if error.argument is not None and not error.tokens_so_far:
            return _missing(error, command, error.keyword or error.argument.name)
    error.verbose = False
    what = str(error).rstrip(".")
    fix = f"`{command} --help` lists the arguments and options"
    if isinstance(error, CoercionError) and error.target_type is int and error.token is not None:
        argument = error.argument.name.lstrip("-").upper() if error.argument is not None else "the argument"
        what = f"{error.token.keyword or argument} takes a whole number, not {error.token.value!r}"
    if isinstance(error, CoercionError) and error.argument is not None and error.argument.required:
        name = error.argument.name.lstrip("-").upper()  # it can be given by position, as all that is required
        fix = f"write `{_line(error, command, name)}`; {fix}"
    return ConfigError(what if what[1:2].isupper() else f"{what[:1].lower()}{what[1:]}", fix=fix)


def _line(error: CycloptsError, command: str, name: str) -> str:
    """Return how a command is written with the arguments that it requires; ``name``: the one that is wrong."""
    found = error.app.assemble_argument_collection(parse_docstring=True) if error.app is not None else ()
    needed = [one.name for one in found if one.required and not one.name.startswith("-")]
    return " ".join((command, *(needed or [name])))


def _missing(error: MissingArgumentError, command: str, name: str) -> ConfigError:
    found = list(error.app.assemble_argument_collection(parse_docstring=True)) if error.app is not None else []
    help_text = next((one.parameter.help for one in found if name in one.names or one.name == name), None)
    if name.startswith("-"):
        what, line = f"`{command}` lacks the value of {name}", f"{command} {name} VALUE"
    else:
        what, line = f"`{command}` lacks {name}", _line(error, command, name)
    meaning = f". {name}: {' '.join(help_text.split())}" if help_text else ""
    return ConfigError(what, fix=f"write `{line}`{meaning}")


def _has(error: UnknownOptionError, name: str) -> bool:
    return any(name in one.names for one in error.argument_collection)


def _close(error: CycloptsError, word: str) -> list[str]:
    """Return the group's commands that look like a word. They are compared by name: importing them takes seconds."""
    names = [name for name in (error.app or ()) if not name.startswith("-")]
    begun = [name for name in names if len(word) >= _PREFIX_LEAST and name.startswith(word)]
    return difflib.get_close_matches(word, names, n=2) or begun[:2]


def _unknown_command(error: CycloptsError, command: str, word: str) -> ConfigError:
    close = " or ".join(f"`{command} {name}`" for name in _close(error, word))
    hint = f"did you mean {close}?" if close else _MEANT.get(word, "") if command == "rollcast" else ""
    listed = f"`{command} --help` lists the commands"
    return ConfigError(f"there is no command `{command} {word}`", fix=f"{hint} ({listed})" if hint else listed)
