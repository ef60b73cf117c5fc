"""`rollcast dashboard`: print or open a run's dashboard, signed in with the run's own key."""

from __future__ import annotations

import html
import sys
import webbrowser
from pathlib import Path

from rollcast.cli.coordinator_api import Target, fetch_sync, page_link
from rollcast.cli.options import LATEST_RUN
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder, run_folder_error, write_atomically

#: The browser opens this file instead of the link: every user of a machine can read command lines, and so the key.
_PAGE = "dashboard.html"


def dashboard(run: Path = LATEST_RUN, /, *, open: bool = False) -> int:
    """Print the address of a run's dashboard. It contains the run's admin key: keep it like a password.

    Parameters
    ----------
    run
        The coordinator's run folder.
    open
        Also open it in this machine's browser.
    """
    target = Target(run)
    try:
        link = page_link(target)
    except RunFolderError as error:
        error.fix = "give the run folder of a running coordinator, on its machine: `rollcast dashboard RUN`"
        raise
    fetch_sync(target, "/api/v1/status")  # an ended run's folder names a port that another run may have now
    print(link, flush=True)
    if link.startswith("https:"):
        authority = RunFolder(run).root / "ca.pem"
        print(
            "A browser warns of the page's certificate, which is of the run's own authority: import its"
            f" {authority} in the browser, or accept the certificate once.",
            file=sys.stderr,
        )
    if open:
        webbrowser.open(_redirect(RunFolder(run.absolute()), link).as_uri())
    return 0


def _redirect(folder: RunFolder, link: str) -> Path:
    """Write a file that only its owner can read and that redirects a browser to the link; return its path.

    Raises:
        RunFolderError: the file cannot be written.
    """
    path = folder.secrets / _PAGE
    page = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={html.escape(link)}">\n'
    try:
        write_atomically(path, page.encode(), mode=0o600)
    except OSError as error:
        raise run_folder_error(path, error) from None
    return path
