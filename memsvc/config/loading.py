"""From sources to effective settings, and from one set of them to the next."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from memsvc.config.fields import parse_listen
from memsvc.config.model import KEYS, Settings, contradictions, value_of, warnings
from memsvc.config.sources import (
    Collected,
    nested,
    owners,
    place,
    read_env,
    read_file,
    read_overrides,
)
from memsvc.domain.addresses import ListenAddress

# Found values are quoted in messages; a pasted key or certificate should not fill the screen.
_QUOTED_LENGTH = 80


class ConfigError(ValueError):
    """The configuration cannot be used; `problems` has one line for each thing to fix."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("configuration refused:\n" + "\n".join(f"  {p}" for p in self.problems))


@dataclass(frozen=True)
class Effective:
    """Settings in force and where each came from."""

    settings: Settings
    origins: Mapping[str, str]
    """By dotted key: "default", "file:PATH:LINE", "env:NAME" or "override"."""
    notes: Mapping[str, str]
    """By dotted key: what an operator should know; to be logged once at start."""


def load(
    path: Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Effective:
    """Read settings: defaults, under the YAML file, under MEMSVC_ variables, under overrides.

    Raises ConfigError with every problem found. Nothing is read but what is passed: for the
    process environment pass `os.environ`.
    """
    found = Collected()
    if path is not None:
        read_file(path, found)
    read_env(env or {}, found)
    read_overrides(overrides or {}, found)

    values: dict[str, object] = {name: one.value for name, one in found.values.items()}
    origins = dict.fromkeys(KEYS, "default")
    origins |= {name: one.origin for name, one in found.values.items()}
    try:
        settings = Settings.model_validate(nested(values))
    except ValidationError as error:
        raise ConfigError(found.problems + _bad_values(error, origins)) from None

    settings, notes = _keep_default_inside(settings, origins)
    problems = found.problems + [
        _line(name, text, origins[name]) for name, text in contradictions(settings)
    ]
    if problems:
        raise ConfigError(problems)
    return Effective(settings, origins, notes | dict(warnings(settings)))


def _keep_default_inside(
    settings: Settings, origins: Mapping[str, str]
) -> tuple[Settings, dict[str, str]]:
    """Without tokens the default address is loopback; only a configured one can be refused."""
    default: ListenAddress = parse_listen(settings.server.listen)
    if (
        origins["server.listen"] != "default"
        or settings.auth.mode != "none"
        or settings.server.allow_insecure
        or default.is_loopback
    ):
        return settings, {}
    inside = str(ListenAddress("127.0.0.1", default.port))
    server = settings.server.model_copy(update={"listen": inside})
    note = "loopback only, because auth.mode is none"
    return settings.model_copy(update={"server": server}), {"server.listen": note}


def _bad_values(error: ValidationError, origins: Mapping[str, str]) -> list[str]:
    problems = []
    for detail in error.errors(include_url=False):
        name = next(owners(detail["loc"]))
        quoted = repr(detail["input"])
        if len(quoted) > _QUOTED_LENGTH:
            quoted = quoted[:_QUOTED_LENGTH] + "..."
        text = f"found {quoted}, expected {KEYS[name].expects}"
        if cause := detail.get("ctx", {}).get("error"):
            text += f": {cause}"
        problems.append(_line(name, text, origins[name]))
    # A value that may be of one of several kinds is refused once for each.
    return list(dict.fromkeys(problems))


def _line(name: str, text: str, origin: str) -> str:
    return f"{name}: {text}" if origin == "default" else f"{place(origin)}: {name}: {text}"


def reload_diff(old: Settings, new: Settings) -> tuple[list[str], list[str]]:
    """Keys whose values differ: those a running server takes over, and those it cannot."""
    reloadable: list[str] = []
    fixed: list[str] = []
    for name, info in KEYS.items():
        if value_of(old, name) != value_of(new, name):
            (reloadable if info.reload else fixed).append(name)
    return reloadable, fixed


def merge_reload(old: Effective, new: Effective) -> Effective:
    """What is in force after a reload: `new` where a running server can follow, else `old`."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, info in KEYS.items():
        source = new if info.reload else old
        values[name] = value_of(source.settings, name)
        origins[name] = source.origins[name]
    notes = {name: text for name, text in old.notes.items() if not KEYS[name].reload}
    notes |= {name: text for name, text in new.notes.items() if KEYS[name].reload}
    return Effective(Settings.model_validate(nested(values)), origins, notes)
