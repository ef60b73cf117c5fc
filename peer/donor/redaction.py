"""Takes secrets out of texts that go to other people. Pure.

What is known to be secret on this machine is looked for as it stands; what looks like a secret is taken out by its
form. Better a word too many than one too few.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

REDACTED = "[redacted]"
_LENGTH_LEAST = 8  # a shorter "secret" would take ordinary words out

_NAMES = (
    r"[\w.-]*(?:secret|passw(?:or)?d|api[_-]?key|access[_-]?key|authorization|cookie|private|credential|token|invite)"
    r"[\w.-]*"
)
_NOT_SECRET = (
    r"(?!(?:[\w.-]*(?:tokens|token_ids|fencing_token|tokens_per_second)[\w.-]*|invite_file|public_key|headers_file))"
)

_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]*-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)", re.DOTALL), "[key or certificate]"),
    (re.compile(r"rollcast1-[A-Za-z0-9_=-]{8,}"), "[invite]"),
    (re.compile(r"(?i)\b(bearer|invite|basic|digest)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {REDACTED}"),
    (re.compile(rf"(?i)(\"{_NOT_SECRET}{_NAMES}\"\s*:\s*)\"(?:[^\"\\]|\\.)*\""), rf'\1"{REDACTED}"'),
    (
        re.compile(rf"(?im)(^|[\s,;&?{{])({_NOT_SECRET}{_NAMES}\s*[=:]\s*)(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',;&]+)"),
        rf"\1\2{REDACTED}",
    ),
    (re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://)[^/\s\"'@]+@"), rf"\1{REDACTED}@"),
    (re.compile(r"(?i)(\bhttps?://[^\s\"'?#]+)[?#][^\s\"']*"), rf"\1?{REDACTED}"),
    (re.compile(r"\b(?:hf_|gh[pousr]_|github_pat_|sk-|glpat-|xox[abpr]-|AKIA|ASIA)[A-Za-z0-9_-]{10,}"), REDACTED),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"), REDACTED),
)


class Redactor:
    """Args:
    secrets: texts that must not be in the result, in any place.
    home: this user's home folder, which has a name in it; it becomes ``~``.
    """

    def __init__(self, secrets: Iterable[str], *, home: str = "") -> None:
        found = {part for secret in secrets for part in (secret.strip(), *secret.split()) if len(part) >= _LENGTH_LEAST}
        self._secrets = sorted(found, key=len, reverse=True)
        self._home = home.rstrip("/")

    def clean(self, text: str) -> str:
        """The text without them."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        for form, put in _FORMS:
            text = form.sub(put, text)
        return text.replace(self._home, "~") if self._home else text
