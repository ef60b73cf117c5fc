from __future__ import annotations

from capacity.model.topologies import Topology


def test_shapes_are_written_as_people_give_them() -> None:
    assert str(Topology()) == "stripes=8"
    assert str(Topology("stripes", 4)) == "stripes=4"
    assert [str(Topology(shape)) for shape in ("tree", "chain", "star")] == ["tree", "chain", "star"]
