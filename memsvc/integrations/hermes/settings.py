"""What can be set, and where: $HERMES_HOME/memsvc/config.json, the environment above it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from memsvc.domain.limits import MAX_NAME_BYTES, MAX_SESSION_BYTES

NAME: Final = "memsvc"
TOKEN_VARIABLE: Final = "MEMSVC_TOKEN"
ADDRESS_VARIABLE: Final = "MEMSVC_ADDRESS"

SCOPES: Final = ("user", "profile")
EMBEDDERS: Final = ("auto", "local", "none")
KEEPS: Final = ("all", "user", "none")

# Hermes gives up a prefetch after 8 s; the first one may wait as long again for the memory to open.
RECALL_SECONDS: Final = (0.1, 3.5)
TOKEN_BUDGET: Final = (50, 20_000)
_DIGEST: Final = 12
_MARK: Final = "~"
_MARKED: Final = re.compile(rf"{_MARK}[0-9a-f]{{{_DIGEST}}}$")


class SettingsError(ValueError):
    """A setting is wrong; the message names the file, the key, what is there and what is
    expected."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it, with the defaults. Times in seconds."""

    address: str = "127.0.0.1:8848"
    """HOST:PORT of the node; several with commas between = a primary with replicas."""
    tenant: str = "hermes"
    """Whose store of memories it is."""
    agent: str = ""
    """Name of the agent within the tenant; empty = the Hermes profile."""
    scope: str = "user"
    """"user": each user of a messenger has memories of their own, and so has whoever is at the
    terminal. "profile": all who talk to the profile share them."""
    embedder: str = "auto"
    """Who makes vectors: "local", "none" (words only), or "auto": local if it is installed."""
    keep: str = "all"
    """Which turns are remembered by themselves: "all", "user" (not the agent's), "none"."""
    recall_seconds: float = 2.0
    """Longest time of a recall before a turn, 0.1 to 3.5."""
    token_budget: int = 1_200
    """Most tokens of what is recalled before a turn, 50 to 20,000."""
    tls: bool = False
    """Whether to encrypt; implied by the three files."""
    ca_file: str = ""
    """Authorities of the server's certificate, PEM."""
    cert_file: str = ""
    """Certificate of this client, PEM."""
    key_file: str = ""
    """Private key of cert_file, PEM."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The parts of ``address``."""
        return tuple(part.strip() for part in self.address.split(",") if part.strip())


def settings_file(home: Path) -> Path:
    """Where they are; Hermes' own panel of settings writes the same file."""
    return home / NAME / "config.json"


def folder(home: Path) -> Path:
    """Where turns wait that the service has not taken yet."""
    return home / NAME


def load(home: Path, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a Hermes home. SettingsError when they cannot be used."""
    path = settings_file(home)
    values: dict[str, Any] = {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected a JSON object, not {type(values).__name__}")
    if environment.get(ADDRESS_VARIABLE):
        values["address"] = environment[ADDRESS_VARIABLE]
    try:
        return parsed(values)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None


def parsed(values: Mapping[str, Any]) -> Settings:
    """Settings of plain values, as a file or a person gives them: numbers may be texts, and
    what is empty has its default. SettingsError names the key."""
    known = {field.name: field for field in fields(Settings)}
    given: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise SettingsError(f"{key}: there is no such setting; known are {', '.join(known)}")
        if value is None or value == "":
            continue
        given[key] = _typed(key, value, known[key].default)
    settings = Settings(**given)
    _check(settings)
    return settings


def save(values: Mapping[str, Any], home: Path) -> Settings:
    """Puts values over those in the file. SettingsError leaves the file as it was."""
    path = settings_file(home)
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = {}
    known = {field.name for field in fields(Settings)}
    merged = {key: value for key, value in before.items() if key in known} | dict(values)
    settings = parsed(merged)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(merged, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(path)
    return settings


def _typed(key: str, value: Any, default: Any) -> Any:
    if isinstance(default, bool):
        word = str(value).strip().lower()
        if word in ("true", "yes", "on", "1"):
            return True
        if word in ("false", "no", "off", "0"):
            return False
        raise SettingsError(f"{key}: expected true or false, not {value!r}")
    if isinstance(default, str):
        if not isinstance(value, str):
            raise SettingsError(f"{key}: expected a text, not {value!r}")
        return value.strip()
    try:
        return type(default)(value)
    except (TypeError, ValueError):
        raise SettingsError(f"{key}: expected a number, not {value!r}") from None


def _check(settings: Settings) -> None:
    for key, choices in (("scope", SCOPES), ("embedder", EMBEDDERS), ("keep", KEEPS)):
        if getattr(settings, key) not in choices:
            told = f"expected one of {', '.join(choices)}, not {getattr(settings, key)!r}"
            raise SettingsError(f"{key}: {told}")
    for key, (low, high) in (("recall_seconds", RECALL_SECONDS), ("token_budget", TOKEN_BUDGET)):
        if not low <= getattr(settings, key) <= high:
            raise SettingsError(
                f"{key}: expected {low:,} to {high:,}, not {getattr(settings, key)}"
            )
    for key in ("tenant", "agent"):
        if getattr(settings, key) != segment(getattr(settings, key)):
            raise SettingsError(
                f"{key}: expected at most {MAX_NAME_BYTES} bytes without '/' and control "
                f"characters, not {getattr(settings, key)!r}"
            )
    if bool(settings.cert_file) != bool(settings.key_file):
        raise SettingsError("cert_file and key_file go together")
    if not settings.addresses:
        raise SettingsError("address: expected HOST:PORT")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose memories a session of Hermes reads and writes."""

    tenant: str
    agent: str


def owner_of(settings: Settings, session: Mapping[str, Any]) -> Owner:
    """The owner of a session, by what Hermes tells of it (the keyword arguments of
    ``initialize``). Two users of a messenger never share one unless the scope is "profile"; where
    Hermes knows the chat and not the user, the chat is the owner."""
    agent = settings.agent or str(session.get("agent_identity") or "default")
    platform = str(session.get("platform") or "cli")
    parts = [agent]
    if settings.scope == "user":
        if session.get("user_id"):
            parts += [platform, str(session["user_id"])]
        elif session.get("chat_id"):
            parts += [platform, "chat", str(session["chat_id"])]
    name = ":".join(parts)
    if any(":" in part for part in parts):
        # Who may choose a name must not choose that of a chat, "chat:5", or of somebody else.
        name += _MARK + _digest(json.dumps(parts))
    return Owner(settings.tenant, segment(name, marked=name != ":".join(parts)))


def segment(text: str, most: int = MAX_NAME_BYTES, *, marked: bool = False) -> str:
    """A text as a tenant, agent or session can be called: as it is where that is allowed, else
    with other characters and a digest, so that two stay two. So is a text that looks as if it had
    one, unless it has (``marked``): it may be made to look like another's."""
    clean = "".join("_" if c == "/" or not c.isprintable() else c for c in text)
    fits = clean == text and len(text.encode(errors="replace")) <= most
    if fits and (marked or not _MARKED.search(text)):
        return text
    kept = clean.encode(errors="replace")[: most - _DIGEST - 1].decode(errors="ignore")
    return f"{kept}{_MARK}{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGEST]


def session_name(text: str) -> str:
    """A session of Hermes as a session here."""
    return segment(text, MAX_SESSION_BYTES)
