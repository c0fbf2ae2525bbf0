"""Pictures, by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Curve:
    """Recall and latency of one dtype: ``points`` are (ef, recall, ms)."""

    name: str
    bare: bool
    points: list[tuple[int, float, float]] = field(default_factory=list)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def recall_curves(path: Path, title: str, panels: Mapping[str, Sequence[Curve]]) -> None:
    """Latency against recall; a panel for each recall@k, a line for each dtype, dashed for
    the bare index."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, len(panels), figsize=(7 * len(panels), 5), squeeze=False)
    for axis, (name, curves) in zip(axes[0], panels.items(), strict=True):
        colours: dict[str, str] = {}
        for curve in curves:
            colour = colours.setdefault(curve.name, f"C{len(colours)}")
            found = [recall for _, recall, _ in curve.points]
            spent = [ms for _, _, ms in curve.points]
            label = f"{curve.name}{', bare usearch' if curve.bare else ''}"
            style = "--" if curve.bare else "-"
            axis.plot(found, spent, style, marker="o", ms=3, color=colour, label=label)
            if not curve.bare:
                for ef, recall, ms in curve.points:
                    axis.annotate(str(ef), (recall, ms), fontsize=7, color=colour)
        axis.set_xlabel(f"{name} (numbers: ef_search)")
        axis.set_ylabel("p50, ms")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


@dataclass(slots=True)
class Timeline:
    """What happened during a mixed load; times in seconds from its start.

    ``reads``: (due times, latencies in s); ``tails``: (times, rows, segments); ``phases``:
    (start, end, name); ``seals`` and ``merges``: times.
    """

    reads: tuple[NDArray[np.float64], NDArray[np.float64]]
    tails: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
    phases: list[tuple[float, float, str]]
    seals: list[float]
    merges: list[float]


def timeline(path: Path, title: str, line: Timeline) -> None:
    """Read latency by the second above, tail and segments below."""
    pyplot = _pyplot()
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(12, 7), sharex=True)
    due, spent = line.reads
    seconds, p50, p99 = by_second(due, spent)
    # No line across the pauses between phases.
    pauses = np.flatnonzero(np.diff(seconds) > 1) + 1
    seconds, p50, p99 = (np.insert(values, pauses, np.nan) for values in (seconds, p50, p99))
    above.plot(seconds, p99, lw=1, label="read p99 of the second")
    above.plot(seconds, p50, lw=1, label="read p50 of the second")
    above.set_ylabel("ms, from the scheduled time")
    above.set_yscale("log")
    times, rows, segments = line.tails
    below.plot(times, rows, lw=1, label="tail rows")
    below.set_ylabel("tail rows")
    below.set_xlabel("seconds")
    right = below.twinx()
    right.step(times, segments, where="post", lw=1, color="C2", label="segments")
    right.set_ylabel("segments")
    for axis in (above, below):
        for at in line.seals:
            axis.axvline(at, color="C3", lw=0.8, alpha=0.6)
        for at in line.merges:
            axis.axvline(at, color="C4", lw=0.8, alpha=0.6, ls=":")
        for start, end, name in line.phases:
            axis.axvspan(start, end, alpha=0.05, color="black")
            if axis is above:
                place = ((start + end) / 2, 0.97)
                axis.annotate(
                    name, place, xycoords=("data", "axes fraction"), ha="center", va="top"
                )
        axis.grid(alpha=0.3)
    above.plot([], [], color="C3", label="sealed")
    above.plot([], [], color="C4", ls=":", label="merged")
    lines = [line for axis in (above, below, right) for line in axis.get_legend_handles_labels()[0]]
    above.legend(handles=lines, ncols=6, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1))
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def by_second(
    due: NDArray[np.float64], spent: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Seconds in which something was due, with p50 and p99 in ms of what was due in each."""
    order = np.argsort(due, kind="stable")
    due, spent = due[order], spent[order]
    bins = np.floor(due)
    seconds, starts = np.unique(bins, return_index=True)
    groups = np.split(spent, starts[1:]) if len(seconds) else []
    p50 = [np.percentile(g, 50, method="inverted_cdf") * 1e3 for g in groups]
    p99 = [np.percentile(g, 99, method="inverted_cdf") * 1e3 for g in groups]
    return seconds, np.array(p50), np.array(p99)
