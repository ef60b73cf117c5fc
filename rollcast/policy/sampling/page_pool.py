"""Assign pages of the cache to sequences, with counted references to the prompts that sequences share.

The pool holds page numbers only, no arrays. A sequence reserves every page that it can ever need before it begins, so
that no sequence is evicted. Its first pages are those of its prompt, which all sequences with that prompt share; if the
prompt ends within a page, each sequence has its own copy of that page, because it continues to write there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rollcast.runtime.errors import CacheTooSmall

Tokens = tuple[int, ...]

NULL_PAGE = 0  # the page that belongs to no sequence and takes writes that must have no effect


@dataclass(slots=True)
class SharedPrompt:
    """The pages of a prompt, and how many sequences use them."""

    tokens: Tokens
    pages: tuple[int, ...]
    users: int = 0
    records: list[Any] = field(default_factory=list)
    """What the reader of the prompt keeps of it for the sequences that share it."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The pages of one sequence."""

    prompt: SharedPrompt
    own: tuple[int, ...]
    first: bool
    """Whether the prompt's pages are new, so that they have to be filled before a sequence reads them."""
    copy: tuple[int, int] | None
    """The page to copy before the sequence begins and the page to copy it to; None: no copy is needed."""

    def table(self, whole_pages: int) -> tuple[int, ...]:
        """Return the sequence's pages in the order of its tokens; the prompt's first ``whole_pages`` are shared."""
        return (*self.prompt.pages[:whole_pages], *self.own)


class PagePool:
    """A pool of ``pages`` pages of ``page_tokens`` tokens; page 0, which belongs to no sequence, is not counted."""

    def __init__(self, pages: int, page_tokens: int) -> None:
        self.pages = pages
        self.page_tokens = page_tokens
        self._free = list(range(pages, NULL_PAGE, -1))
        self._prompts: dict[Tokens, SharedPrompt] = {}

    @property
    def free_pages(self) -> int:
        """Return the number of pages that no sequence holds."""
        return len(self._free)

    def pages_of(self, tokens: int) -> int:
        """Return how many pages ``tokens`` tokens need."""
        return -(-tokens // self.page_tokens)

    def require(self, tokens: int) -> None:
        """Refuse a sequence that would not fit into an empty pool.

        Raises:
            CacheTooSmall: the sequence needs more pages than the pool has.
        """
        # A prompt that ends within a page needs one more page: the shared page and its copy.
        if self.pages_of(tokens) + 1 > self.pages:
            raise CacheTooSmall(
                f"a rollout of up to {tokens} tokens does not fit into a cache of {self.pages * self.page_tokens}",
                cause="prompt and completion need their pages at the same time",
                fix="raise cache_tokens of the engine, or lower max_new_tokens of the run",
            )

    def reserve(self, prompt: Tokens, tokens: int) -> Reservation | None:
        """Reserve pages for a sequence of up to ``tokens`` tokens that begins with ``prompt``.

        Returns None if too few pages are free now.
        """
        shared = self._prompts.get(prompt)
        whole = len(prompt) // self.page_tokens
        own = self.pages_of(tokens) - whole
        needed = own + (self.pages_of(len(prompt)) if shared is None else 0)
        if needed > len(self._free):
            return None
        first = shared is None
        if shared is None:
            shared = SharedPrompt(prompt, tuple(self._free.pop() for _ in range(self.pages_of(len(prompt)))))
            self._prompts[prompt] = shared
        shared.users += 1
        pages = tuple(self._free.pop() for _ in range(own))
        copy = (shared.pages[whole], pages[0]) if len(prompt) % self.page_tokens else None
        return Reservation(shared, pages, first, copy)

    def release(self, reservation: Reservation) -> None:
        """Free the pages of a sequence that has ended, and the prompt's pages when their last sequence ends."""
        self._free += reservation.own
        shared = reservation.prompt
        shared.users -= 1
        if not shared.users:
            self._free += shared.pages
            if self._prompts.get(shared.tokens) is shared:
                del self._prompts[shared.tokens]

    def share_no_more(self) -> None:
        """Give the prompts that are in use now to no further sequence; those that have them keep them."""
        self._prompts.clear()
