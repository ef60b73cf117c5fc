"""Fit the repository's documents into the site, as hooks of mkdocs.

The documents link to each other as they lie in the repository. README, CONTRIBUTING, CHANGELOG and deploy/README become
pages of the site; a link to any other file of the repository stays as its text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: File of the repository -> page of the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "deploy/README.md": "deploy/README.md",
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside docs/, and leave this module out."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for file in list(files):
        if file.src_uri.endswith(".py"):
            files.remove(file)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to where their targets lie in the site."""
    places = {page_uri: source for source, page_uri in PAGES.items()}
    uri = page.file.src_uri
    here = posixpath.dirname(places.get(uri, f"docs/{uri}"))

    def moved(link: re.Match[str]) -> str:
        picture, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        if not target or "://" in target:
            return link[0]
        path = posixpath.normpath(posixpath.join(here, target))
        in_site = PAGES.get(path) or PAGES.get(f"{path}/README.md")
        if in_site is None and path.startswith("docs/"):
            in_site = path.removeprefix("docs/")
        if in_site is None:
            if not (ROOT / path).exists():
                raise FileNotFoundError(f"{uri} links to {target}, which is not there")
            return text
        return f"{picture}[{text}]({posixpath.relpath(in_site, posixpath.dirname(uri) or '.')}{anchor})"

    return _LINK.sub(moved, markdown)
