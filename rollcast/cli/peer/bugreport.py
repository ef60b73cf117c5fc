"""`rollcast peer bugreport`: collect what a bug report needs in one archive."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rollcast.cli.options import AsJson
from rollcast.cli.peer.folders import ConfigFile, StateFolder, config_file, config_home, only_warnings, state_folder

Out = Annotated[
    Path | None, Parameter(help="Archive to write; by default a file in this folder, named after the time.")
]


def bugreport(
    *, out: Out = None, state: StateFolder = None, config: ConfigFile = None, json_output: AsJson = False
) -> int:
    """Write an archive with this machine's hardware, state and log, without keys, invites, tokens, prompts or rollouts.

    Nothing is sent anywhere. Look through the archive, then send it yourself.
    """
    from peer.donor.bug_report import bug_report
    from peer.donor.install.join import PeerPaths

    only_warnings()
    places = PeerPaths((config or config_file()).absolute(), (state or state_folder()).absolute())
    path = out or Path(f"rollcast-bugreport-{datetime.now():%Y%m%d-%H%M%S}.tar.gz")
    report = bug_report(places, config_home(), out=path)
    if json_output:
        print(json.dumps({"file": str(path), "holds": report.files, "absent": report.absent}))
        return 0
    held = [name for name in report.files if name not in report.absent]
    print(f"{path} holds {', '.join(held)}. It has no secrets, and nothing was sent.")
    if report.absent:
        print(f"This machine has none of these: {', '.join(report.absent)}.")
    return 0
