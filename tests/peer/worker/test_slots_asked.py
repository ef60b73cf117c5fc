from __future__ import annotations

from peer.worker.pacing import SlotsAsked


def test_only_news_are_told() -> None:
    asked = SlotsAsked()
    assert not asked.is_news(0), "nobody expects that we can take anything"
    assert asked.is_news(8)
    assert not asked.is_news(8)
    asked.granted(3)
    assert not asked.is_news(5), "it knows what it granted"
    assert asked.is_news(0)
    asked.granted(2)
    assert not asked.is_news(0)


def test_leases_before_our_first_word_change_nothing() -> None:
    asked = SlotsAsked()
    asked.granted(3)
    assert asked.is_news(5)
