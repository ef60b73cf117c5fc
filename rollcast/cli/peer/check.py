"""`rollcast peer check [INVITE]`: measure this machine and check whether it is fit for a run."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rollcast.cli.options import Json
from rollcast.cli.peer.folders import (
    ConfigFile,
    EnginePython,
    InviteText,
    StateFolder,
    config_file,
    only_warnings,
    read_invite_argument,
    state_folder,
)
from rollcast.runtime.errors import RollcastError
from rollcast.wire.donor.process_end import RUN_ENDED, last_end
from rollcast.wire.identity.tls import CREDENTIALS

if TYPE_CHECKING:
    from peer.config import PeerConfig
    from peer.donor.check.findings import Finding
    from peer.donor.check.run import CheckResult

_COLUMNS = 100
_TOPIC_WIDTH = 7  # characters, at least
_MARKS = {"error": "ERROR", "warning": "warn ", "ok": "ok   "}


def check(
    invite: InviteText = "",
    /,
    *,
    model: str = "",
    decode: bool = True,
    link: bool = True,
    engine_python: EnginePython = None,
    state: StateFolder = None,
    config: ConfigFile = None,
    json_output: Json = False,
) -> int:
    """Measure this machine and check whether it is fit for a run. Installs nothing, and sends only random test data.

    Parameters
    ----------
    invite
        Invite from the operator, or - to read it from standard input. Without it, the run that this machine has joined
        is used; if there is none, only the machine itself is checked.
    model
        Published model to measure with instead of the run's, for example qwen3-0.6b.
    decode
        Measure tokens/s; --no-decode skips it.
    link
        Measure the network link; --no-link skips it.
    config
        The peer's configuration file; by default that of this user's peer, or the defaults.
    json_output
        Print one JSON object.
    """
    from peer.donor.check.run import CheckRequest, check_machine
    from peer.donor.install import join

    only_warnings()
    path = config or config_file()
    settings, places = _settings(path, state or state_folder())
    if engine_python is not None:
        engine = settings.engine.model_copy(update={"python": engine_python.absolute()})
        settings = settings.model_copy(update={"engine": engine})
    text = read_invite_argument(invite)
    if not text and (text := _saved_invite(settings)) and RUN_ENDED in (ended := last_end(places)):
        _print_note(f"the run that this machine had joined is over ({ended}); without a new invite only it is checked")
        text = ""
    asked = CheckRequest(
        config=settings,
        state_folder=places,
        invite=join.peer_invite(text) if text else None,
        is_member=bool(text) and not invite and (places / CREDENTIALS).exists(),
        model=model,
        decode=decode,
        link=link,
    )
    checked = asyncio.run(check_machine(asked, _print_note))
    print(json.dumps(_as_json(checked)) if json_output else _screen(checked))
    return checked.exit_status


def _settings(path: Any, folder: Any) -> tuple[PeerConfig, Any]:
    from peer.config import PeerConfig
    from rollcast.runtime.config import load_config

    if not path.exists():
        return PeerConfig(state_folder=folder), folder
    found = load_config(path, PeerConfig)
    return found, found.state_folder


def _saved_invite(settings: PeerConfig) -> str:
    """Return the invite of the run that this machine has joined; empty if there is none."""
    inline = settings.invite.get_secret_value()
    if inline or settings.invite_file is None:
        return inline
    try:
        return settings.invite_file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _print_note(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _as_json(checked: CheckResult) -> dict[str, Any]:
    return {
        "fit": checked.exit_status == 0,
        "findings": [asdict(finding) for finding in checked.findings],
        "machine": asdict(checked.machine),
        "link": None
        if checked.link is None
        else {**asdict(checked.link), "problems": _problems(checked.link.problems)},
        "nat": checked.nat,
        "decode": None if checked.decoded is None else asdict(checked.decoded),
        "worth": checked.worth,
        "run": checked.needs,
    }


def _problems(problems: tuple[RollcastError, ...]) -> list[dict[str, str]]:
    return [{"code": one.code, "what": one.what, "cause": one.cause, "fix": one.fix} for one in problems]


def _wrapped(before: str, text: str, *, more: int = 0) -> list[str]:
    """Wrap text to _COLUMNS; later lines are indented to where the text begins, plus ``more``."""
    indent = " " * (len(before) + more)
    return textwrap.wrap(
        text, _COLUMNS, initial_indent=before, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """Return findings as a person reads them, wrapped."""
    width = max(_TOPIC_WIDTH, *(len(finding.topic) for finding in findings))
    lines = []
    for finding in findings:
        code = f"{finding.code}: " if finding.code else ""
        lines += _wrapped(f"{_MARKS[finding.level]}  {finding.topic:<{width}} ", f"{code}{finding.text}")
        if finding.fix and finding.level != "ok":
            first, *others = finding.fix.split("\n")
            lines += _wrapped(f"{'':<{width + 8}} fix: ", first, more=3 * bool(others))
            lines += [line for step in others for line in _wrapped(f"{'':<{width + 13}} ", step, more=3)]
    return lines


def _screen(checked: CheckResult) -> str:
    lines = finding_lines(checked.findings)
    worth = checked.worth
    if worth is not None:
        lines += ["", str(worth["sentence"]), *(f"  {reason}" for reason in worth["reasons"])]
        lines += [f"  would help: {one}" for one in worth["what_would_help"]]
    errors = sum(finding.level == "error" for finding in checked.findings)
    counted = "1 error" if errors == 1 else f"{errors} errors"
    lines += [
        "",
        "This machine is fit."
        if not errors
        else f"This machine is not fit: {counted}. `rollcast explain CODE` tells more of each.",
    ]
    return "\n".join(lines)
