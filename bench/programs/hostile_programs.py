"""Programs that try to get a reward without solving their problem, or to stop the scoring of others.

None of them can know what is wanted: the tests compare with a number that they contain and the problem does not.
"""

from __future__ import annotations

HOSTILE: dict[str, str] = {
    "frame reader": """
import sys
def solve(n):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if type(value) in (int, float) and value > 100000: return value
        frame = frame.f_back
    return 0
""",
    "object scanner": """
import gc
def solve(n):
    for one in gc.get_objects():
        if isinstance(one, dict):
            for value in list(one.values()):
                if type(value) in (int, float) and value > 100000: return value
    return 0
""",
    "equal to everything": """
class Equal(float):
    def __eq__(self, other): return True
    def __sub__(self, other): return 0.0
    __rsub__ = __sub__
    def __float__(self): return 0.0
    def __hash__(self): return 1
def solve(n): return Equal(1)
""",
    "early exit": "import sys\nsys.exit(0)",
    "early hard exit": "import os\nos._exit(0)",
    "exit in the call": "import os\ndef solve(n): os._exit(0)",
    "forged verdict": """
import os
def solve(n):
    for fd in range(16):
        for line in (b'["passed"]\\n', b'["value", "123456"]\\n', b'["scored", 1.0, true, "", {}]\\n'):
            try: os.write(fd, line)
            except OSError: pass
    return 0
""",
    "file reader": """
import os, re
def solve(n):
    for folder in (".", "..", "/tmp", "/proc/self", "/proc/1", f"/proc/{os.getppid()}"):
        for name in (os.listdir(folder) if os.path.isdir(folder) else ()):
            try: text = open(f"{folder}/{name}", errors="replace").read(1 << 16)
            except OSError: continue
            found = re.findall(r"(?<![0-9])[0-9]{6}(?![0-9])", text)
            if found: return int(found[0])
    return 0
""",
    "memory reader": """
import os, re
def solve(n):
    for pid in (os.getppid(), 1):
        try:
            maps = open(f"/proc/{pid}/maps").read()
            memory = open(f"/proc/{pid}/mem", "rb")
            for low, high in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", maps, re.M):
                memory.seek(int(low, 16))
                found = re.findall(rb"== ([0-9]{6})", memory.read(int(high, 16) - int(low, 16)))
                if found: return int(found[0])
        except OSError: pass
    return 0
""",
    "patched helpers": """
import builtins, math, json
math.isclose = lambda *a, **b: True
builtins.abs = lambda x: 0
builtins.repr = lambda x: "123456"
json.dumps = lambda *a, **b: '["passed"]'
def solve(n): return 0
""",
    "disarmed assert": "AssertionError = type('Fine', (BaseException,), {})\ndef solve(n): return 0",
    "own exception": "class Quiet(BaseException): pass\ndef solve(n): raise Quiet",
    "killer": """
import os, signal
for pid in (os.getppid(), 1, -1, 0):
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
def solve(n): return 0
""",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "thread bomb": """
import threading
def spin():
    while True: pass
while True:
    try: threading.Thread(target=spin).start()
    except RuntimeError: pass
""",
    "memory bomb": "held = []\nwhile True: held.append(bytearray(1 << 24))",
    "output flood": "import os\nwhile True: os.write(1, b'x' * 65536); os.write(2, b'x' * 65536)",
    "deaf loop": """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
""",
    "file bomb": "n = 0\nwhile True:\n    n += 1\n    open(f'{n}', 'wb').write(b'x' * (1 << 20))",
    "daemon": """
import os
if os.fork() == 0:
    try: os.setsid()
    except OSError: pass
    if os.fork() == 0:
        while True: pass
def solve(n): return 0
""",
    "network": """
import socket
def solve(n):
    try: return int(socket.create_connection(("127.0.0.1", 80), 1).recv(6))
    except OSError: return 0
""",
}
HONEST = "def solve(n): return n + {secret}"
