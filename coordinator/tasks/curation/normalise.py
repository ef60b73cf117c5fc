"""Normalise answers that data sets write in many forms to the bare answer."""

from __future__ import annotations

import re

_FINAL = re.compile(r"####\s*([^\n]+)\s*\Z")  # how GSM8K ends its solutions
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_TRAILING_ZEROS = re.compile(r"([+-]?\d+)\.0+")
_MARKS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))


def normalise_answer(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the normalised answer, and the names of the steps that changed it (see _STEPS).

    A step that would leave the answer empty is skipped.
    """
    answer, done = text, []
    for name, step in _STEPS:
        after = step(answer)
        if after != answer and after.strip():
            answer = after
            done.append(name)
    return answer, tuple(done)


def _final_line(text: str) -> str:
    found = _FINAL.search(text)
    return found[1].strip() if found else text


def _boxed(text: str) -> str:
    """Return the content of the last box, with nested braces counted."""
    starts = [match.end() for match in _BOXED.finditer(text)]
    if not starts:
        return text
    depth = 1
    for at in range(starts[-1], len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if not depth:
            return text[starts[-1] : at]
    return text


def _marks(text: str) -> str:
    stripped = text.strip()
    for start, end in _MARKS:
        inner = stripped[len(start) : len(stripped) - len(end)]
        if stripped.startswith(start) and stripped.endswith(end) and len(stripped) > len(start) + len(end):
            return inner if start not in inner else text
    return text


def _full_stop(text: str) -> str:
    stripped = text.rstrip()
    return stripped[:-1] if stripped.endswith(".") and not stripped.endswith("..") else text


def _number(text: str) -> str:
    stripped = text.strip()
    if _THOUSANDS.fullmatch(stripped):
        stripped = stripped.replace(",", "")
    whole = _TRAILING_ZEROS.fullmatch(stripped)
    if whole:
        stripped = whole[1]
    return stripped if stripped != text.strip() else text


def _space(text: str) -> str:
    return text.strip()


_STEPS = (
    ("final_line", _final_line),
    ("boxed", _boxed),
    ("marks", _marks),
    ("full_stop", _full_stop),
    ("number", _number),
    ("space", _space),
)
