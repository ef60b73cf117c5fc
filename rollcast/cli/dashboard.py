"""`rollcast dashboard`: the page of a run, signed in with the run's own key."""

from __future__ import annotations

import html
import webbrowser
from pathlib import Path

from rollcast.cli.coordinator_api import Target, page_link
from rollcast.cli.options import LATEST_RUN
from rollcast.runtime.run_folder import RunFolder, run_folder_error, write_atomically

#: A browser is given this file's name: command lines, and so the key in a link, are for all users of a machine to see.
_PAGE = "dashboard.html"


def dashboard(run: Path = LATEST_RUN, /, *, open: bool = False) -> int:
    """Print the address of a run's page. It holds the run's key: who has it may do everything.

    Parameters
    ----------
    run
        the coordinator's run folder.
    open
        open it in the browser of this machine too.
    """
    link = page_link(Target(run))
    print(link, flush=True)
    if open:
        webbrowser.open(_redirect(RunFolder(run.absolute()), link).as_uri())
    return 0


def _redirect(folder: RunFolder, link: str) -> Path:
    """A file, for its owner only, that leads a browser to the link.

    Raises:
        RunFolderError: it cannot be written.
    """
    path = folder.secrets / _PAGE
    page = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={html.escape(link)}">\n'
    try:
        write_atomically(path, page.encode(), mode=0o600)
    except OSError as error:
        raise run_folder_error(path, error) from None
    return path
