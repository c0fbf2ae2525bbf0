"""With storage.wal_sync = always the answer comes after the fsync: seen by strace."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.scenarios import harness as h

MakeNode = Callable[..., h.Node]
CALLS = "fdatasync,fsync,msync,sendmsg,sendto,write,writev,pwrite64,pwritev"
LINE = re.compile(r"^(?P<pid>\d+)\s+(?P<time>[\d.]+) (?P<rest>.*)$")


def _traced(node: h.Node, trace: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: the order of system calls cannot be seen")
    probe = subprocess.run([strace, "-o", "/dev/null", "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"strace may not trace here: {probe.stderr}")
    prefix = [strace, "-f", "-yy", "-ttt", "-s", "2048", "-e", f"trace={CALLS}", "-o", str(trace)]
    node.start(prefix=prefix)


def _events(trace: Path, ids: list[str]) -> list[str]:
    """Kinds "page", "sync" and "answer" (which holds an id), in order. A call that strace shows in
    two halves counts where it ends, an answer where it begins."""
    events: list[str] = []
    begun: dict[str, str] = {}
    for line in trace.read_text(errors="replace").splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        pid, rest = match["pid"], match["rest"]
        if rest.endswith("<unfinished ...>"):
            begun[pid] = rest
            if rest.startswith("sendmsg"):
                events.append(_kind(rest, ids))
            continue
        if "resumed>" in rest:
            rest = begun.pop(pid, "") + rest
            if rest.startswith("sendmsg"):
                continue
        events.append(_kind(rest, ids))
    return events


def _kind(call: str, ids: list[str]) -> str:
    if "data.mdb" in call and call.startswith(("fdatasync", "fsync", "msync")):
        return "sync"
    if "data.mdb" in call and call.startswith(("pwrite", "write")):
        return "page"
    if call.startswith("sendmsg") and any(one in call for one in ids):
        return "answer"
    return ""


def test_a_write_is_answered_after_its_fsync(make_node: MakeNode, tmp_path: Path) -> None:
    node, trace = make_node(), tmp_path / "trace"
    _traced(node, trace)
    ids = [h.fill(node, [number])[0] for number in range(6)]
    _stop(node)
    text = "".join(kind[:1] for kind in _events(trace, ids))  # p, s, a
    assert text.count("a") == 6, "the answers are not in the trace"
    # Each commit: pages, a sync, the meta page, a sync (or a synced write), then the answer.
    assert re.fullmatch(r"([ps]*s[ps]*s?a?)*[ps]*", text), text
    assert not re.search(r"pp+a", text), f"an answer between pages and their sync: {text}"
    assert len(re.findall(r"p+s+p*s*a", text)) == 6, text


def _stop(node: h.Node) -> None:
    """Ends the server; strace ends with it."""
    for child in psutil.Process(node.pid).children():
        child.send_signal(signal.SIGTERM)
    assert node.process is not None
    node.process.wait(60)


def test_the_directory_swap_is_synced(make_node: MakeNode, tmp_path: Path) -> None:
    """A compacted database replaces the old one only after it is on disk."""
    node, trace = make_node(), tmp_path / "trace"
    _traced(node, trace)
    ids = h.fill(node, range(20))
    h.forget(node, ids[:5])
    node.maintain(purge=True)
    _stop(node)
    text = trace.read_text(errors="replace")
    assert re.search(r"fsync\(\d+<[^>]*store\.new/data\.mdb>", text), "the copy was not synced"
    assert re.search(rf"fsync\(\d+<{re.escape(str(node.data_dir))}>", text), "nor the directory"
