"""A server without vLLM, which speaks the real one's protocol: `python -m ... MODE FOLDER LOCK FD`.

Each token is 2 + position % 5. FOLDER counts the lives. A mode says how a server fails: "good" never does, "refuses"
does not start, "unfit" refuses the model, "dies-once" and "dies" end in the middle of the first tokens, "hangs-once"
sends no tokens, "lies" sends a token that is not of the vocabulary, "wrong-once" gets version 1 wrong and samples other
tokens with it, "garbage" sends no frames, "leaves-child" starts a process that stays.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

from peer.engines.vllm.server.frames import Frame, FrameReader, encode
from rollcast.wire.versions.state_hash import state_hash


def main() -> None:
    mode, folder, lock, descriptor = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    life = len(list(folder.glob("life-*")))
    (folder / f"life-{life}").write_text(str(os.getpid()))
    assert Path(lock).exists()
    print(f"life {life}", flush=True)
    connection = socket.socket(fileno=descriptor)
    frames = FrameReader()
    while data := connection.recv(1 << 16):
        for frame in frames.receive(data):
            for answer in answers(frame.header, mode, life, folder):
                connection.sendall(answer)


def answers(header: dict[str, Any], mode: str, life: int, folder: Path) -> list[bytes]:
    first = life == 0 or not mode.endswith("-once")
    kind = mode.removesuffix("-once")
    made = []
    match header["do"]:
        case "start":
            if kind == "leaves-child":
                child = subprocess.Popen(["sleep", "1000"])
                (folder / "child").write_text(str(child.pid))
            facts = {"vllm": "0", "device": "none", "devices": 1, "tensor_parallel": 1}
            made.append(encode(Frame({"is": "progress", "doing": "nothing"})))
            failed: dict[str, Any] = {"refuses": {"error": "no room"}, "unfit": {"refused": "no such heads"}}
            made.append(encode(Frame({"is": "answer", "id": header["id"], **failed.get(kind, {"facts": facts})})))
        case "load":
            made.append(encode(Frame({"is": "answer", "id": header["id"], "paused_s": 0.5, "moved_bytes": 7})))
        case "apply_patch":
            made.append(encode(Frame({"is": "answer", "id": header["id"], "paused_s": 0.5, "moved_bytes": 1})))
        case "find_places":
            names = [name for one in json.loads(Path(header["table"]).read_text()) for name in one["names"]]
            Path(f"{header['placement']}.0").write_text(json.dumps({name: [] for name in names}))
            why = "" if kind == "wrong" else "it has no weights"
            made.append(encode(Frame({"is": "answer", "id": header["id"], "why": [why]})))
        case "read_back":
            place = Path(header["table"]).parent
            wrong = first and place.name.startswith("1-")
            found = bytes(32) if wrong else state_hash((place / "state").read_bytes())
            made.append(encode(Frame({"is": "answer", "id": header["id"], "hash": found.hex()})))
        case "stage_patch" | "forget_places":
            made.append(encode(Frame({"is": "answer", "id": header["id"]})))
        case "adapt":
            with (folder / "adapted").open("a") as names:
                names.write(f"{' '.join(sorted(header['adapters']))}\n")
            made.append(encode(Frame({"is": "answer", "id": header["id"]})))
        case "generate" if kind == "garbage":
            made.append(b"\xff" * 100)
        case "generate" if not (kind == "hangs" and first):
            dies = kind == "dies" and first
            more = 99 * (kind == "lies") + (kind == "wrong" and first and header["salt"].startswith("1-"))
            counts = [(one, 1 if dies else one["new_tokens_max"]) for one in header["requests"]]
            made += [tokens(one, count, more, header["salt"]) for one, count in counts]
    if made and kind == "dies" and header["do"] == "generate" and first:
        os.write(int(sys.argv[4]), b"".join(made))
        os._exit(3)
    return made


def tokens(request: dict[str, Any], count: int, more: int, salt: str) -> bytes:
    start = request["prompt_tokens"]
    ids = array("i", [2 + position % 5 + more for position in range(start, start + count)])
    header = {"is": "tokens", "salt": salt, "counts": [[request["number"], count]], "ended": []}
    return encode(Frame(header, ids.tobytes() + array("f", [-1.0] * count).tobytes()))


if __name__ == "__main__":
    main()
