from __future__ import annotations

import json
from pathlib import Path

from coordinator.config.tasks import JsonlTask
from coordinator.tasks.multi_task import Part
from coordinator.tasks.part_stream import PartStream
from coordinator.tasks.rows import Rows
from coordinator.tasks.token_limits import TokenLimits
from rollcast.wire.text.tokenizer import Tokenizer


def test_a_part_goes_through_its_file_again_in_another_order(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}?", "answer": str(n)}) + "\n" for n in range(30)))
    rows = Rows(JsonlTask(kind="jsonl", path=path))
    limits = TokenLimits(Tokenizer((), rows.characters()), 8, 8)
    streams = [PartStream(Part(name, rows), limits, 1, lambda *_: True) for name in ("", "a", "a")]
    orders = [[found[0].prompt for _ in range(60) if (found := stream.next_problem(()))] for stream in streams]
    assert orders[1] == orders[2] != orders[0]
    assert sorted(orders[0][:30]) == sorted(orders[0][30:])
    assert orders[0][:30] != orders[0][30:]
    assert streams[0].cursor.values() == [60, 0, 0, 0, 0, 0]
