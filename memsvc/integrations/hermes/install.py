"""Putting the plugin where Hermes looks for it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from memsvc.integrations.hermes.settings import NAME

FILES: Final = ("__init__.py", "cli.py", "config_schema.py", "plugin.yaml")
SOURCE: Final = Path(__file__).parent / "plugin"


class NotOurs(RuntimeError):
    """There is something else in the place of the plugin."""


def plugin_folder(home: Path) -> Path:
    """Where Hermes 0.19 looks for it."""
    return home / "plugins" / NAME


def install(home: Path) -> Path:
    """Copies the plugin, over an older one. Returns its folder. NotOurs when another plugin has
    the name; OSError when it cannot be written."""
    folder = plugin_folder(home)
    _check(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(SOURCE / name, folder / name)
    return folder


def uninstall(home: Path) -> bool:
    """Removes the plugin; whether there was one. Settings and what waits to be written stay.
    NotOurs as above."""
    folder = plugin_folder(home)
    _check(folder)
    if not folder.exists():
        return False
    shutil.rmtree(folder)
    return True


def _check(folder: Path) -> None:
    if not folder.exists():
        return
    try:
        ours = "memsvc.integrations.hermes" in (folder / "__init__.py").read_text(encoding="utf-8")
    except OSError:
        ours = False
    if not ours:
        raise NotOurs(f"{folder}: there is something else there; move it away first")
