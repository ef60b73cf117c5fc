from __future__ import annotations

from capacity.catalogue.origins import ORIGINS


def test_every_origin_says_who_when_and_under_what_licence() -> None:
    for folder, origin in ORIGINS.items():
        assert folder == origin.folder
        assert origin.source
        assert origin.licence
        assert origin.measured[:2] == "20"
        assert origin.relative_uncertainty is None or 0 < origin.relative_uncertainty < 1
