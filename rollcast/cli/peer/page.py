"""`rollcast peer page`: print or open the address of this machine's own page."""

from __future__ import annotations

import json
from typing import Annotated

from cyclopts import Parameter

from rollcast.cli.options import AsJson
from rollcast.cli.peer.control import ask
from rollcast.cli.peer.folders import StateFolder

Open = Annotated[bool, Parameter(name="--open", negative=())]


def page(*, open_: Open = False, state: StateFolder = None, json_output: AsJson = False) -> int:
    """Print the address of this machine's page, which works on this machine only.

    The address contains a key that allows everything that you may do there: keep it like a password.

    Parameters
    ----------
    open_
        Also open the page in a browser.
    """
    url = str(ask("page", state)["url"])
    print(json.dumps({"url": url}) if json_output else url)
    if open_:
        import webbrowser

        webbrowser.open(url)
    return 0
