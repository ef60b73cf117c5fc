from __future__ import annotations

from bench.people.configuration_page import PAGE, page


def test_the_page_has_every_key_as_it_is_now() -> None:
    assert PAGE.read_text() == page(), "make configuration-page writes the page anew"
