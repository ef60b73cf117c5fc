"""Serve the run's scored rollouts to people: pages of a list, and one as a conversation."""

from __future__ import annotations

import asyncio

from pydantic import Field

from coordinator.api.views import to_text
from coordinator.http.routes import Answer, Call, Query, Route
from coordinator.prompts.rollout_views import PAGE_MAX, RolloutsPage, RolloutView, rollout_view, rollouts_page
from coordinator.prompts.stored_rollouts import ROLLOUT_ID_MAX, RolloutFilter
from rollcast.runtime.errors import ConfigError, MalformedMessage
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.text.tokenizer import TextTokenizer

NUMBER_MAX = 2**53  # that every reader of JSON takes as it is


class RolloutsQuery(Query):
    """Filter of rollouts by reward, age in learner steps, length in tokens, peer, problem and version."""

    reward_min: float | None = None
    reward_max: float | None = None
    age_min: int | None = Field(None, ge=0, le=NUMBER_MAX)
    age_max: int | None = Field(None, ge=0, le=NUMBER_MAX)
    tokens_min: int | None = Field(None, ge=0, le=NUMBER_MAX)
    tokens_max: int | None = Field(None, ge=0, le=NUMBER_MAX)
    peer: str = Field("", max_length=128)
    """Name or id of the peer that sent it."""
    problem: str = Field("", max_length=1024)
    """Id of its problem."""
    version: int | None = Field(None, ge=0, le=NUMBER_MAX)
    """Oldest version of its segments."""
    wrong: bool = False
    """Return only rollouts that are not entirely correct."""
    before: int = Field(ROLLOUT_ID_MAX, ge=1, le=ROLLOUT_ID_MAX)
    """Return only rollouts with a smaller id: next_before of the previous page."""
    limit: int = Field(50, ge=1, le=PAGE_MAX)


class RolloutRoutes:
    """Routes of rollouts. Only one request at a time reads the ledger, in a thread: others wait for it."""

    def __init__(self, folder: RunFolder, tokenizer: TextTokenizer) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self._turn = asyncio.Lock()

    def routes(self) -> list[Route]:
        """Return the routes, each with its path and the role that it requires."""
        return [
            Route(
                "GET",
                "/api/v1/rollouts",
                "viewer",
                self._get_page,
                "Return scored rollouts, newest first.",
                query=RolloutsQuery,
                answer=RolloutsPage,
            ),
            Route(
                "GET",
                "/api/v1/rollouts/{id}",
                "viewer",
                self._get_one,
                "Return one rollout as a conversation.",
                answer=RolloutView,
            ),
        ]

    async def _get_page(self, call: Call) -> Answer:
        asked: RolloutsQuery = call.query
        chosen = RolloutFilter(**asked.model_dump(exclude={"before", "limit"}))
        async with self._turn:
            try:
                page = await asyncio.to_thread(
                    rollouts_page, self._folder, self._tokenizer, asked.limit, chosen, asked.before
                )
            except ConfigError as error:
                raise MalformedMessage(error.what, cause=error.cause, fix="name a peer of /api/v1/workers") from None
        return to_text(page)

    async def _get_one(self, call: Call) -> Answer:
        text = call.params["id"]
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
        async with self._turn:
            found = await asyncio.to_thread(rollout_view, self._folder, self._tokenizer, number)
        if found is None:
            raise MalformedMessage(
                f"there is no scored rollout {text[:32]!r}",
                cause="it does not exist, is not scored yet, or was compacted",
                fix="see /api/v1/rollouts",
            )
        return to_text(found)
