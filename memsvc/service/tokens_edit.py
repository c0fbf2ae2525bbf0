"""Adding and revoking tokens in the file, for the command line.

The file is replaced as a whole: a reader sees the old one or the new one, also after a crash.
Comments in it are not kept.
"""

import base64
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from memsvc.service.tokens import (
    TOKEN_PREFIX,
    Right,
    TokenEntry,
    TokensFileError,
    hash_token,
    parse_tokens,
)

_TOKEN_BYTES = 32
_HEAD = "# Access tokens of memsvc, hashed. Change with `memsvc token add` and `token revoke`.\n"


def new_token(random_bytes: Callable[[int], bytes]) -> str:
    """A fresh token from 32 bytes of `random_bytes` (`os.urandom` outside tests)."""
    encoded = base64.urlsafe_b64encode(random_bytes(_TOKEN_BYTES)).decode().rstrip("=")
    return TOKEN_PREFIX + encoded


def list_tokens(path: Path) -> tuple[TokenEntry, ...]:
    """The tokens in the file, none when there is no file; TokensFileError when it is broken."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise TokensFileError(f"{path}: cannot be read: {error}") from None
    return parse_tokens(text, str(path))


def add_token(
    path: Path,
    name: str,
    prefixes: Iterable[str],
    rights: Iterable[Right | str],
    *,
    expires_at: int | None = None,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> str:
    """Add a token and return it; it is stored nowhere and cannot be shown again.

    `expires_at` is UTC milliseconds. Makes the file, mode 0600, when there is none.
    TokensFileError when the name is taken, a value is not allowed, or the file is broken.
    """
    token = new_token(random_bytes)
    with _locked(path):
        entries = [_plain(entry) for entry in list_tokens(path)]
        if any(entry["name"] == name for entry in entries):
            raise TokensFileError(f"{path}: there is a token named {name!r}; revoke it first")
        entry: dict[str, Any] = {
            "name": name,
            "sha256": hash_token(token),
            "prefixes": list(prefixes),
            "rights": [str(right) for right in rights],
        }
        if not entry["prefixes"] or not entry["rights"]:
            raise TokensFileError(f"token {name!r} needs at least one prefix and one right")
        if expires_at is not None:
            entry["expires_at"] = expires_at
        _replace(path, [*entries, entry])
    return token


def revoke_token(path: Path, name: str) -> bool:
    """Take a token out of the file; False when there is none of that name."""
    with _locked(path):
        entries = list_tokens(path)
        kept = [_plain(entry) for entry in entries if entry.name != name]
        if len(kept) == len(entries):
            return False
        _replace(path, kept)
    return True


def _plain(entry: TokenEntry) -> dict[str, Any]:
    return entry.model_dump(mode="json", exclude_none=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep two commands from overwriting each other's change."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, entries: list[dict[str, Any]]) -> None:
    document = {"version": 1, "tokens": entries}
    text = _HEAD + yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    parse_tokens(text, str(path))  # nothing is written that could not be read
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)  # left by a crash
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
