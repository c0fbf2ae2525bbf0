"""Command line: one benchmark by name, or a selection of moderate size."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final

from benchmarks import (
    bootstrap,
    evidence,
    filters,
    mixed,
    query,
    readers,
    rebuild,
    recall,
    replay,
    replicas,
    sdk,
    startup,
    tiers,
    writes,
)
from benchmarks.session import Session
from benchmarks.workspace import Workspace

BENCHMARKS: Final[dict[str, ModuleType]] = {
    "recall": recall,
    "rebuild": rebuild,
    "query": query,
    "filters": filters,
    "writes": writes,
    "mixed": mixed,
    "evidence": evidence,
    "sdk": sdk,
    "startup": startup,
    "tiers": tiers,
    "replicas": replicas,
    "replay": replay,
    "bootstrap": bootstrap,
    "readers": readers,
}
HERE: Final = Path(__file__).parent


def parser() -> argparse.ArgumentParser:
    """The options of all benchmarks."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    _common(top)
    names = top.add_subparsers(dest="name", metavar="NAME")
    for name, module in BENCHMARKS.items():
        doc = (module.__doc__ or "").strip()
        sub = names.add_parser(
            name,
            help=doc.splitlines()[0],
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _common(sub, argparse.SUPPRESS)
        module.add_arguments(sub)
    return top


def _common(to: argparse.ArgumentParser, missing: object = None) -> None:
    """Options that may stand before or behind the name."""
    level = to.add_mutually_exclusive_group()
    level.add_argument("--quick", action="store_true", default=missing or False, help="tiny")
    level.add_argument(
        "--full", action="store_true", default=missing or False, help="the required sizes"
    )
    to.add_argument("--out", type=Path, default=missing or HERE / "results", help="for results")
    to.add_argument(
        "--work",
        type=Path,
        default=missing,
        help="for stores, on the disk to be measured (default: benchmarks/out)",
    )
    to.add_argument(
        "--keep", action="store_true", default=missing or False, help="keep stores for later runs"
    )
    to.add_argument(
        "--data",
        type=Path,
        default=missing or os.environ.get("MEMSVC_DATA"),
        help="folder of the conversations (default: MEMSVC_DATA)",
    )


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 when all ran, whatever they found."""
    args = parser().parse_args(arguments)
    level = "quick" if args.quick else "full" if args.full else "default"
    work: Path = args.work or HERE / "out"
    work.mkdir(parents=True, exist_ok=True)
    root = work / "kept" if args.keep else Path(tempfile.mkdtemp(dir=work))
    workspace = Workspace(root, keep=args.keep)
    data = Path(args.data) if args.data else None
    session = Session(level, args, workspace, args.out, data)
    began = time.monotonic()
    failed = []
    try:
        for name in [args.name] if args.name else list(BENCHMARKS):
            try:
                BENCHMARKS[name].run(session)
            except Exception:
                # The others are still worth running.
                traceback.print_exc()
                failed.append(name)
    finally:
        workspace.close()
    print(f"\nall done in {time.monotonic() - began:.0f} s", flush=True)
    if failed:
        print(f"broken off: {', '.join(failed)}", flush=True)
    return 1 if failed else 0
