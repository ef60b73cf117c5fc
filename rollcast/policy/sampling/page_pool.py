"""Which pages of the cache belong to which sequences: counted references, and prompts that sequences share.

Plain bookkeeping. A sequence reserves every page that it can ever need before it begins, so that nothing that has
begun is ever thrown out. Its first pages are those of its prompt, which all sequences with that prompt share; where
the prompt ends within a page, each has a copy of that page of its own, because it goes on writing there.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.runtime.errors import CacheTooSmall

Tokens = tuple[int, ...]

NOBODY = 0  # the page that is written where nothing should be


@dataclass(slots=True)
class SharedPrompt:
    """A prompt's pages, and how many sequences use them."""

    tokens: Tokens
    pages: tuple[int, ...]
    users: int = 0


@dataclass(frozen=True, slots=True)
class Reservation:
    """The pages of one sequence."""

    prompt: SharedPrompt
    own: tuple[int, ...]
    first: bool
    """The prompt's pages are new: they have to be filled before anyone reads them."""
    copy: tuple[int, int] | None
    """The page to copy, and to where, before the sequence begins."""

    def table(self, whole_pages: int) -> tuple[int, ...]:
        """Its pages in the order of its tokens; ``whole_pages`` of the prompt's are shared."""
        return (*self.prompt.pages[:whole_pages], *self.own)


class PagePool:
    """``pages`` pages of ``page_tokens`` tokens, the page that is nobody's not counted."""

    def __init__(self, pages: int, page_tokens: int) -> None:
        self.pages = pages
        self.page_tokens = page_tokens
        self._free = list(range(pages, NOBODY, -1))
        self._prompts: dict[Tokens, SharedPrompt] = {}

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def pages_of(self, tokens: int) -> int:
        """Pages that so many tokens need."""
        return -(-tokens // self.page_tokens)

    def require(self, tokens: int) -> None:
        """Refuse a sequence that would not fit into an empty pool.

        Raises:
            CacheTooSmall: it needs more pages than there are.
        """
        # A prompt that ends within a page takes one page more: the shared one and its copy.
        if self.pages_of(tokens) + 1 > self.pages:
            raise CacheTooSmall(
                f"a rollout of up to {tokens} tokens does not fit into a cache of {self.pages * self.page_tokens}",
                cause="prompt and completion need their pages at the same time",
                fix="raise cache_tokens of the engine, or lower max_new_tokens of the run",
            )

    def reserve(self, prompt: Tokens, tokens: int) -> Reservation | None:
        """Pages for a sequence of up to ``tokens`` tokens that begins with ``prompt``; None: not now."""
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
        """The sequence has ended."""
        self._free += reservation.own
        shared = reservation.prompt
        shared.users -= 1
        if not shared.users:
            self._free += shared.pages
            del self._prompts[shared.tokens]
