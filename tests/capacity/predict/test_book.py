from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capacity.predict.book import Book
from capacity.predict.fleet_parts import Group, Slot

Steps = list[tuple[str, int]]
STEPS = st.lists(st.tuples(st.sampled_from(("begin", "lease", "vacate", "remove")), st.integers(0, 99)), max_size=60)


def test_a_leased_slot_that_becomes_vacant_is_found_again() -> None:
    book = Book()
    first, second = book.begin([0.1, 0.2]), book.begin([0.3])
    assert book.lease(first, 2) == [0.2, 0.1]
    assert (book.vacant, book.place(second)) == ([second], 1)
    book.vacate(Slot(first, 0.1, 1, 0.0, needs=0))
    assert (book.vacant, first.vacant) == ([first, second], [0.1])
    book.remove(first)
    assert (first.over, book.vacant, book.place(second), len(book.groups)) == (True, [second], 0, 1)


@given(STEPS)
def test_places_and_vacant_groups_are_those_of_a_search(steps: Steps) -> None:
    book = Book()
    leased: list[Slot] = []
    for what, number in steps:
        groups = list(book.groups)
        if what == "begin":
            book.begin([0.25, 0.5, 0.75])
        elif what == "lease" and book.vacant:
            group = book.vacant[number % len(book.vacant)]
            lengths = book.lease(group, 1 + number % len(group.vacant))
            leased += [Slot(group, length, 1, 0.0, needs=0) for length in lengths]
        elif what == "vacate" and leased:
            slot = leased.pop(number % len(leased))
            if not slot.group.over:
                book.vacate(slot)
        elif what == "remove" and groups:
            book.remove(groups[number % len(groups)])
        _matches_a_search(book)


def _matches_a_search(book: Book) -> None:
    groups: list[Group] = list(book.groups)
    assert [book.place(group) for group in groups] == list(range(len(book.groups)))
    assert book.vacant == [group for group in groups if group.vacant]
    assert not any(group.over for group in groups)
