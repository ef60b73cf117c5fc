from __future__ import annotations

import argparse

from bench import delta


def test_one_small_layer_gives_every_figure_in_the_right_order() -> None:
    parser = argparse.ArgumentParser()
    delta.add_arguments(parser)
    figures = delta.run(parser.parse_args(["--mib", "1"])).figures
    for number in ("1e-6", "3e-6", "1e-5"):
        assert 0 < figures[f"fp8_{number}"] < figures[f"bf16_{number}"] < figures[f"bf16_{number}_x8"] < 1
    assert figures["bf16_1e-6"] < figures["bf16_3e-6"] < figures["bf16_1e-5"] < figures["zstd_alone"]
    assert figures["encode_mb_s"] > 0
    assert figures["decode_mb_s"] > 0
