from __future__ import annotations

import csv
from importlib import resources

from capacity.catalogue.csv_tables import number_or_none, read_rows, read_text
from capacity.catalogue.origins import ORIGINS


def test_empty_cells_are_not_known() -> None:
    assert number_or_none("") is None
    assert number_or_none("1e9") == 1e9


def test_every_table_has_its_origin_and_licence_beside_it() -> None:
    folders = [folder for folder in (resources.files("capacity.catalogue") / "data").iterdir() if folder.is_dir()]
    assert {folder.name for folder in folders} == set(ORIGINS)
    for folder in folders:
        text = read_text(folder.name, "README.md").lower()
        assert "origin" in text or "transcribed" in text, folder.name
        assert "licence" in text or "license" in text or "apache" in text, folder.name
        assert any(file.name.endswith(".csv") for file in folder.iterdir())


def test_tables_are_whole() -> None:
    for folder, file in (("gpus", "gpus.csv"), ("models", "models.csv"), ("skyplane", "region_pairs.csv")):
        rows = read_rows(folder, file)
        header = next(csv.reader(read_text(folder, file).splitlines()))
        assert all(set(row) == set(header) and None not in row.values() for row in rows)
