"""Memory that large messages would leave behind in every thread of a server."""

from __future__ import annotations

import subprocess
import sys

from memsvc.service import allocator

CODE = """
import re, sys, threading
from pathlib import Path
from memsvc.service import allocator

if not allocator.tune():
    sys.exit(0)

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def work():
    # Small blocks, so that they come from the thread's arena, and kept until all are there.
    kept.append([bytes(3_000) for _ in range(4_000)])
    barrier.wait()

barrier, kept = threading.Barrier(16), []
before = resident()
threads = [threading.Thread(target=work) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
full = resident()
kept.clear()
assert allocator.give_back()
after = resident()
print(before, full, after)
assert full - before > 150_000
assert after - before < 20_000
"""


def test_what_threads_freed_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_giving_back_waits_until_there_is_something_to_give() -> None:
    sizes = iter([100 << 20, 101 << 20, 99 << 20, 106 << 20, 100 << 20, 200 << 20, 100 << 20])
    returner = allocator.Returner(lambda: next(sizes))
    assert not returner.tick()  # 1 MB more
    assert not returner.tick()  # less
    given = returner.tick()  # 7 MB more than the least; then it is 100
    assert given is allocator.give_back()
    assert returner.tick() is given
