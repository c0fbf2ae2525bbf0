"""One place for percentiles, tables, the machine, JSON and Markdown."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

LIBRARIES: Final = ("memsvc", "usearch", "numpy", "lmdb", "grpcio", "protobuf")


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of n latencies, in ms, by nearest rank: each is a latency that occurred."""

    n: int
    p50: float
    p95: float
    p99: float
    worst: float

    def cells(self) -> tuple[str, ...]:
        """p50, p95, p99 and n for a table."""
        return (*(f"{v:.2f}" for v in (self.p50, self.p95, self.p99)), str(self.n))


PERCENTILES: Final = ("p50 ms", "p95 ms", "p99 ms", "n")
"""Heads of ``Percentiles.cells``."""


def percentiles(seconds: ArrayLike) -> Percentiles:
    """Of latencies in seconds; NaN when there are none."""
    values = np.asarray(seconds, np.float64) * 1e3
    if not values.size:
        return Percentiles(0, *[float("nan")] * 4)
    ranks = np.percentile(values, (50, 95, 99, 100), method="inverted_cdf")
    return Percentiles(values.size, *map(float, ranks))


def machine() -> dict[str, Any]:
    """CPU, cores, memory, system and library versions, and how busy the machine was."""
    model = platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def machine_line(facts: dict[str, Any]) -> str:
    """The machine in one line."""
    libraries = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, {facts['system']}; "
        f"Python {facts['python']}, {libraries}; load average at the start "
        f"{facts['load_at_start']}"
    )


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def ratio(measured: float, limit: float) -> str:
    """How many times the limit."""
    return f"{measured / limit:.2f}x" if limit > 0 else "-"


class Report:
    """Results of one benchmark: printed as they come, written by ``save``.

    ``facts`` become the JSON file; tables, notes and plots the Markdown file beside it.
    """

    def __init__(self, name: str, title: str, out: Path, command: str) -> None:
        self.name = name
        self.facts: dict[str, Any] = {}
        self.verdicts: list[dict[str, Any]] = []
        self._out = out
        self._began = time.monotonic()
        self._machine = machine()
        self._head = {
            "benchmark": name,
            "command": command,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": self._machine,
        }
        self._parts = [
            f"# {title}",
            f"`{command}`, {self._head['at']}\n\n{machine_line(self._machine)}",
        ]
        print(f"\n# {title}\n{machine_line(self._machine)}", flush=True)

    def say(self, text: str) -> None:
        """Progress, for the screen only."""
        print(f"  [{time.monotonic() - self._began:6.1f} s] {text}", flush=True)

    def note(self, text: str) -> None:
        """A paragraph."""
        self._parts.append(text)
        print(f"\n{text}", flush=True)

    def table(self, title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table under a heading."""
        text = f"## {title}\n\n{markdown_table(head, rows)}"
        self._parts.append(text)
        print(f"\n{text}", flush=True)

    def verdict(self, what: str, measured: float, bound: float, *, least: bool = False) -> None:
        """Whether a bound is kept; ``least``: the bound is a lower one."""
        kept = measured >= bound if least else measured <= bound
        self.verdicts.append({"what": what, "measured": measured, "bound": bound, "pass": kept})
        sign = ">=" if least else "<="
        self.note(f"{'PASS' if kept else 'FAIL'}: {what}: {measured:.4g} {sign} {bound:.4g}")

    def plot(self, suffix: str = "") -> Path:
        """Where to put a picture, which the Markdown file will show."""
        self._out.mkdir(parents=True, exist_ok=True)
        path = self._out / f"{self.name}{suffix}.png"
        self._parts.append(f"![{path.stem}]({path.name})")
        return path

    def save(self) -> None:
        """Writes NAME.json and NAME.md."""
        self._out.mkdir(parents=True, exist_ok=True)
        seconds = round(time.monotonic() - self._began, 1)
        document = {
            **self._head,
            "seconds": seconds,
            "results": self.facts,
            "verdicts": self.verdicts,
        }
        text = json.dumps(document, indent=1, default=_plain, ensure_ascii=False)
        (self._out / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")
        (self._out / f"{self.name}.md").write_text(
            "\n\n".join(self._parts) + "\n", encoding="utf-8"
        )
        print(f"\n{self.name}: {seconds} s, results in {self._out}/{self.name}.*", flush=True)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        # Not asdict, which takes counters apart.
        return {entry.name: getattr(value, entry.name) for entry in fields(value)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
