"""Show the traceback of a user's code without the frames of Rollcast that called it.

Only the standard library is imported, because environments are also run by other interpreters.
"""

from __future__ import annotations

import traceback
from pathlib import Path

#: What a user's code raises that must not end its worker: sys.exit in a reward is its author's mistake, too.
USERS_ERRORS = (Exception, SystemExit)
#: Both packages lie in one folder, also where it holds links to them (coordinator/environments/process.py).
_FOLDER = Path(__file__).absolute().parents[2]
_CALLERS = (*(f"{_FOLDER / package}/" for package in ("coordinator", "rollcast")), "<frozen importlib", "<frozen runpy")


def users_traceback(error: BaseException) -> str:
    """Return the exception and its frames from the first one that is the user's; all frames if none is.

    A file that Python cannot parse has no frame of the user's: the error itself names the line.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_CALLERS):
        frames = frames.tb_next
    if frames is None and isinstance(error, SyntaxError):
        return "".join(traceback.format_exception_only(error)).strip()
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__)).rstrip()
