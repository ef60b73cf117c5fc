"""Render the part of Helm's template language that the chart uses: values, quote, if, not, else, define, include."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

_PIECE = re.compile(r"(?P<left>\s*)\{\{(?P<trim>-?)\s*(?P<code>.*?)\s*(?P<trim_right>-?)\}\}", re.DOTALL)
_DEFINE = re.compile(r'\{\{- define "([^"]+)" -\}\}(.*?)\{\{- end \}\}', re.DOTALL)


class Chart:
    """A chart in a folder; ``values``, by dotted names, override its own."""

    def __init__(self, folder: Path, release: str = "test", **values: Any) -> None:
        self._values = yaml.safe_load((folder / "values.yaml").read_text())
        for path, value in values.items():
            *parents, last = path.split("__")
            part = self._values
            for parent in parents:
                part = part[parent]
            part[last] = value
        self._release = release
        helpers = (folder / "templates" / "_helpers.tpl").read_text()
        self._defined = {name: body.strip() for name, body in _DEFINE.findall(helpers)}
        self._notes = folder / "templates" / "NOTES.txt"
        self._templates = sorted((folder / "templates").glob("*.yaml"))

    def documents(self) -> list[dict[str, Any]]:
        """Return every object that the chart makes.

        Raises:
            KeyError, ValueError: a template names a missing value, or uses more of the language.
        """
        found = [yaml.safe_load_all(self._render(path.read_text())) for path in self._templates]
        return [document for documents in found for document in documents if document is not None]

    def notes(self) -> str:
        """Return what Helm prints after an installation; raises as ``documents`` does."""
        return self._render(self._notes.read_text())

    def _render(self, text: str) -> str:
        made, at, shown = [], 0, [True]
        for piece in _PIECE.finditer(text):
            if shown[-1]:
                made.append(text[at : piece.start()] + ("" if piece["trim"] else piece["left"]))
            at, code = piece.end(), piece["code"]
            if code.startswith("if "):
                shown.append(shown[-1] and self._holds(code[3:]))
            elif code == "else":
                shown[-1] = shown[-2] and not shown[-1]
            elif code == "end":
                shown.pop()
            elif shown[-1]:
                made.append(self._filled(code))
        return "".join([*made, text[at:]])

    def _filled(self, code: str) -> str:
        if included := re.fullmatch(r'include "([^"]+)" \. \| nindent (\d+)', code):
            indent = " " * int(included[2])
            return "".join(f"\n{indent}{line}" for line in self._defined[included[1]].splitlines())
        name, _, way = (part.strip() for part in code.partition("|"))
        value = self._value(name)
        if indented := re.fullmatch(r"nindent (\d+)", way):
            return "".join(f"\n{' ' * int(indented[1])}{line}" for line in str(value).split("\n"))
        if way not in ("", "quote"):
            raise ValueError(f"the chart keeps to a part of the language that has no {way!r}")
        return json.dumps(str(value)) if way else str(value)

    def _holds(self, condition: str) -> bool:
        negated = condition.removeprefix("not ")
        return bool(self._value(negated)) is (negated == condition)

    def _value(self, path: str) -> Any:
        if path == ".Release.Name":
            return self._release
        if not path.startswith(".Values."):
            raise ValueError(f"{path!r} is neither a value nor the release's name")
        value = self._values
        for part in path.removeprefix(".Values.").split("."):
            value = value[part]
        return value
