"""Manage the run's operator key and access tokens: an admin makes tokens, each is shown once and stored as a hash."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import Field
from typing_extensions import TypedDict

from coordinator.http.routes import Access, Answer, Body, Call, Caller, Route, TokenAccess
from coordinator.ledger.sql_access import AccessStore, StoredToken
from rollcast.runtime.errors import MalformedMessage
from rollcast.runtime.run_folder import run_folder_error, write_atomically
from rollcast.runtime.waits import deadline
from rollcast.wire.limits import TOKEN_NAME_PATTERN

KEY_FILE = "operator.key"  # in the run folder's secrets/
PREFIX = "rct_"  # lets scanners for leaked secrets recognise a token
TOKEN_BYTES = 32  # 256 bits cannot be guessed
TOKENS_MAX = 256  # valid at once
LEDGER_DEADLINE_S = 30.0
DAY_S = 86_400.0
_RESERVED = frozenset({"loopback"})


def operator_key(folder: Path) -> str:
    """Return the key of the run's operator, made at the first start; only the run folder's owner can read it.

    Raises:
        RunFolderError: it can be neither read nor written.
    """
    path = folder / KEY_FILE
    try:
        if path.exists():
            return path.read_text().strip()
        key = secrets.token_urlsafe(TOKEN_BYTES)
        write_atomically(path, f"{key}\n".encode(), mode=0o600)
    except OSError as error:
        raise run_folder_error(path, error) from None
    return key


class TokenBook:
    """The tokens of a run; call ``load`` first."""

    def __init__(self, store: AccessStore, unix_clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._unix_clock = unix_clock
        self._by_hash: dict[bytes, StoredToken] = {}

    async def load(self) -> None:
        """Load the stored tokens.

        Raises:
            StoreError, WaitTimedOut: they cannot be read.
        """
        async with deadline(LEDGER_DEADLINE_S, "the ledger to load its tokens"):
            self._by_hash = {token.token_hash: token for token in await self._store.tokens()}

    def caller_of(self, token: str) -> Caller | None:
        """Return the token's caller; None if the token is unknown, expired or revoked."""
        stored = self._by_hash.get(_hash(token))
        return None if stored is None or not self._is_valid(stored) else Caller(stored.name, _access(stored))

    def all(self) -> list[tuple[StoredToken, bool]]:
        """Return every token that was ever made, and whether it is valid."""
        return [(token, self._is_valid(token)) for token in self._by_hash.values()]

    async def create(self, name: str, access: Access, lifetime_s: float | None) -> tuple[StoredToken, str]:
        """Make a token; return it and its text, which cannot be read again.

        Raises:
            MalformedMessage: the name is taken, or there are too many tokens.
            StoreError, WaitTimedOut: the ledger cannot store it.
        """
        held = [token.name for token, holds in self.all() if holds]
        if name in held or name in _RESERVED:
            raise MalformedMessage(f"there is a token called {name} already", fix="revoke it, or choose another name")
        if len(held) >= TOKENS_MAX:
            raise MalformedMessage(f"there are {TOKENS_MAX} valid tokens already", fix="revoke some")
        for expired in [token for token, _ in self.all() if token.name == name and token.revoked_unix_s is None]:
            await self.revoke(expired.token_id)
        text, now = PREFIX + secrets.token_urlsafe(TOKEN_BYTES), self._unix_clock()
        expires = None if lifetime_s is None else now + lifetime_s
        async with deadline(LEDGER_DEADLINE_S, "the ledger to store a token"):
            stored = await self._store.create_token(_hash(text), name, access, made_unix_s=now, expires_unix_s=expires)
        self._by_hash[stored.token_hash] = stored
        return stored, text

    async def revoke(self, token_id: int) -> str:
        """Revoke a token at once and return its name.

        Raises:
            MalformedMessage: there is no such token, or it is revoked already.
            StoreError, WaitTimedOut: the ledger cannot store it. The token is refused nevertheless until a restart.
        """
        found = next((token for token in self._by_hash.values() if token.token_id == token_id), None)
        if found is None or found.revoked_unix_s is not None:
            raise MalformedMessage(f"there is no token {token_id} to revoke", fix="see `rollcast token list`")
        now = self._unix_clock()
        self._by_hash[found.token_hash] = StoredToken(
            found.token_id, found.token_hash, found.name, found.access, found.made_unix_s, found.expires_unix_s, now
        )
        async with deadline(LEDGER_DEADLINE_S, "the ledger to revoke a token"):
            await self._store.revoke_token(token_id, now)
        return found.name

    def _is_valid(self, token: StoredToken) -> bool:
        expires = token.expires_unix_s
        return token.revoked_unix_s is None and (expires is None or self._unix_clock() < expires)


class NewToken(Body):
    """The request for a new token."""

    name: str = Field(pattern=TOKEN_NAME_PATTERN)
    access: TokenAccess
    days: float | None = Field(None, gt=0.0, le=3650.0)
    """Days until it expires; null: never."""


class ListedToken(TypedDict):
    """A token without its secret."""

    id: int
    name: str
    access: TokenAccess
    made_unix_s: float
    expires_unix_s: float | None
    revoked_unix_s: float | None
    holds: bool


class TokenList(TypedDict):
    tokens: list[ListedToken]


class MadeToken(TypedDict):
    """A new token; its text is returned only here."""

    id: int
    name: str
    access: TokenAccess
    expires_unix_s: float | None
    token: str


class RevokedToken(TypedDict):
    id: int
    name: str


class TokenRoutes:
    """Routes for admins to list, make and revoke tokens."""

    def __init__(self, book: TokenBook) -> None:
        self._book = book

    def routes(self) -> list[Route]:
        path = "/api/v1/tokens"
        return [
            Route("GET", path, "admin", self._list, "List every token ever made, without secrets.", answer=TokenList),
            Route(
                "POST",
                path,
                "admin",
                self._create,
                "Make a token; its text is returned only here.",
                body=NewToken,
                answer=MadeToken,
                act="make token",
                about=lambda call: (call.body.name, f"{call.body.access}, days: {call.body.days or 'no expiry'}"),
            ),
            Route(
                "POST",
                path + "/{id}/revoke",
                "admin",
                self._revoke,
                "Revoke a token at once and end its streams.",
                answer=RevokedToken,
                act="revoke token",
            ),
        ]

    async def _list(self, _call: Call) -> Answer:
        return {"tokens": [_listed(token, holds=holds) for token, holds in self._book.all()]}

    async def _create(self, call: Call) -> Answer:
        days = call.body.days
        stored, text = await self._book.create(call.body.name, call.body.access, None if days is None else days * DAY_S)
        expires = stored.expires_unix_s
        return {
            "id": stored.token_id,
            "name": stored.name,
            "access": stored.access,
            "expires_unix_s": expires,
            "token": text,
        }

    async def _revoke(self, call: Call) -> Answer:
        words = call.params["id"]
        if not (words.isascii() and words.isdecimal() and len(words) < 16):
            raise MalformedMessage("the token's id is not a number", fix="see `rollcast token list`")
        return {"id": int(words), "name": await self._book.revoke(int(words))}


def _listed(token: StoredToken, *, holds: bool) -> ListedToken:
    return {
        "id": token.token_id,
        "name": token.name,
        "access": _access(token),
        "made_unix_s": token.made_unix_s,
        "expires_unix_s": token.expires_unix_s,
        "revoked_unix_s": token.revoked_unix_s,
        "holds": holds,
    }


def _access(token: StoredToken) -> TokenAccess:
    match token.access:
        case "admin":
            return "admin"
        case "operator":
            return "operator"
        case _:
            return "viewer"


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
