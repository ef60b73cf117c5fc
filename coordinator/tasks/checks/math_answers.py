"""Compare answers as mathematics, with the library math-verify."""

from __future__ import annotations

import importlib
import logging
import re
import threading
import warnings
from functools import lru_cache
from typing import Any

from rollcast.runtime.errors import MissingExtra
from rollcast.runtime.install import install_command

# math-verify interrupts itself with an alarm signal, which only a process's main thread can take.
MATH_TIMEOUT_S = 3
MATH_SIGNS = frozenset("0123456789+-*/^=\\(){}<>")
_MARKED = re.compile(r"\$|\\boxed|\\\(|\\\[")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")


def parse_math(text: str) -> list[Any]:
    """Return what math-verify reads in a text; empty for plain words, which compare only as text."""
    library, timeout_s = _library(), _timeout_s()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: list[Any] = []
        # math-verify looks for marked formulas and reads "2x+1" as the number 1, so a bare formula gets marks.
        # Bare words must not, or "Paris" would equal "Pairs" as a product of letters.
        if MATH_SIGNS.intersection(text) and not _MARKED.search(text) and not _WORD.search(text):
            found = library.parse(f"${text}$", parsing_timeout=timeout_s)
        return found or list(library.parse(text, parsing_timeout=timeout_s))


def same_math(gold: list[Any], other: list[Any]) -> bool:
    """Decide whether two results of parse_math are equal."""
    library, timeout_s = _library(), _timeout_s()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(library.verify(gold, other, timeout_seconds=timeout_s))


def _timeout_s() -> int | None:
    return MATH_TIMEOUT_S if threading.current_thread() is threading.main_thread() else None


@lru_cache(maxsize=1)
def _library() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library = importlib.import_module("math_verify")
    except ImportError as error:
        raise MissingExtra(
            "the task needs the package math-verify", cause=str(error), fix=install_command("coordinator")
        ) from None
    # They log every text that is not mathematics, which completions often are not.
    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return library
