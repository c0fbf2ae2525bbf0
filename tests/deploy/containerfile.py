"""Carries out a Containerfile by plain commands in a folder, where nothing runs containers.

What it leaves out of the format is refused, not passed over.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

IMAGE_ONLY = {"VOLUME", "EXPOSE", "USER", "STOPSIGNAL"}
"""What says something of the image and does nothing while it is built."""


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, rest) in order, continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        word, _, rest = line.partition(" ")
        found.append((word, rest.strip()))
    return found


class Built:
    """An image as a folder: ``root`` has its files, ``facts`` the last value of each instruction
    of its last stage, ``env`` its environment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.facts: dict[str, str] = {}
        self.env: dict[str, str] = {}

    def words(self, name: str) -> list[str]:
        """An instruction in the form of a JSON list."""
        value: Any = json.loads(self.facts[name].partition("CMD ")[2] or self.facts[name])
        return [str(word) for word in value]


def build(containerfile: Path, context: Path, folder: Path, args: Mapping[str, str]) -> Built:
    """Carries out every step; files go to ``folder/root``. ``args`` as for --build-arg."""
    root = folder / "root"
    stages: dict[str, Path] = {}
    values: dict[str, str] = {}
    built = Built(root)
    cwd, stage = root, ""
    for word, rest in instructions(containerfile.read_text(encoding="utf-8")):
        filled = re.sub(r"\$\{(\w+)\}", lambda m: values[m[1]], rest) if word != "RUN" else rest
        if word == "ARG":
            name, _, default = rest.partition("=")
            values[name] = {**args, "ROOT": str(root)}.get(name, default)
        elif word == "FROM":
            if root.exists():
                # The next stage has the same paths, as it would have in its own image.
                stages[stage] = root.rename(folder / f"stage-{stage}")
            stage = filled.partition(" AS ")[2]
            root.mkdir()
            built = Built(root)
            cwd = root
        elif word == "WORKDIR":
            cwd = Path(filled)
            cwd.mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            *sources, target = shlex.split(filled)
            base = context
            if sources[0].startswith("--from="):
                base = stages[sources.pop(0).removeprefix("--from=")]
                sources = [str(base / Path(source).relative_to(root)) for source in sources]
            for source in sources:
                _copy(base / source, cwd / target, into=target.endswith("/"))
        elif word == "RUN":
            environment = {**_clean(), **built.env, **values}
            subprocess.run(["/bin/sh", "-ec", rest], cwd=cwd, env=environment, check=True)
        elif word == "ENV":
            built.env |= dict(pair.split("=", 1) for pair in shlex.split(filled))
        elif word in {"HEALTHCHECK", "ENTRYPOINT", "CMD"} | IMAGE_ONLY:
            built.facts[word] = filled
        else:
            raise AssertionError(f"{word} is not known here")
    return built


def _copy(source: Path, target: Path, *, into: bool) -> None:
    if source.is_dir():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, symlinks=True, ignore=ignore)
    else:
        shutil.copy2(source, target / source.name if into else target)


def _clean() -> dict[str, str]:
    """The environment of a fresh machine that has python3.11."""
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_")) or k == "HOME"}
    python = Path(sys.base_prefix) / "bin"
    return {**kept, "PATH": f"{python}:/usr/local/bin:/usr/bin:/bin"}
