"""Access tokens: a file of hashes, who holds them, and what they may do.

The file is YAML and holds no token, only SHA-256 sums. A token is 32 random bytes, so a plain
hash cannot be reversed by guessing, and slow password hashing would only slow every call.

    version: 1
    tokens:
      - name: assistant-prod          # appears in the audit trail
        sha256: 64 hex digits
        prefixes: [acme/assistant]    # tenant, tenant/agent, tenant/agent/session, or "*"
        rights: [read, write, forget] # also: admin, review; none implies another
        expires_at: 1767225600000     # UTC milliseconds; optional
"""

import hashlib
import hmac
import logging
import os
import stat
import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from memsvc.domain.limits import MAX_TIME_MS

TOKEN_PREFIX = "ms_"  # lets secret scanners and people recognise one
ANY = "*"
_CHECK_INTERVAL_MS = 1000
_MAX_SEGMENTS = 3

_log = logging.getLogger(__name__)


class TokensFileError(ValueError):
    """The tokens file cannot be used. The message names the file and what to do, and never
    quotes a value from it, since someone may have pasted a token there."""


class Right(StrEnum):
    """What a token may allow. None of them implies another."""

    READ = "read"
    WRITE = "write"
    FORGET = "forget"
    ADMIN = "admin"
    REVIEW = "review"


def _check_prefix(prefix: str) -> str:
    segments = prefix.split("/")
    if prefix != ANY and (ANY in segments or not all(segments) or len(segments) > _MAX_SEGMENTS):
        raise ValueError(
            'a prefix is tenant, tenant/agent, tenant/agent/session, or "*" for everything'
        )
    return prefix


class TokenEntry(BaseModel):
    """One token as the file describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, Field(min_length=1, max_length=200)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    prefixes: tuple[Annotated[str, AfterValidator(_check_prefix)], ...]
    rights: tuple[Right, ...]
    expires_at: Annotated[int, Field(strict=True, ge=0, le=MAX_TIME_MS)] | None = None


class TokensFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    version: Literal[1]
    tokens: tuple[TokenEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of an accepted token."""

    name: str
    prefixes: tuple[str, ...]
    rights: frozenset[Right]

    def allows(
        self,
        right: Right | str,
        tenant: str | None = None,
        agent: str | None = None,
        session: str | None = None,
    ) -> bool:
        """True when the right holds for everything below the target.

        Leave out (None or "") what a call spans: a Query that may return every session of an
        agent names no session, so a token for one session does not allow it, and a call on the
        whole store names nothing, which only "*" allows. Segments are compared whole.
        """
        if right not in self.rights:
            return False
        target: list[str] = []
        for segment in (tenant, agent, session):
            if not segment:
                break
            target.append(segment)
        return any(_covers(prefix, target) for prefix in self.prefixes)


def _covers(prefix: str, target: list[str]) -> bool:
    if prefix == ANY:
        return True
    segments = prefix.split("/")
    return target[: len(segments)] == segments


def hash_token(token: str) -> str:
    """The SHA-256 of a token in hex, as the file stores it."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def parse_tokens(text: str, source: str) -> tuple[TokenEntry, ...]:
    """Read the content of a tokens file; TokensFileError names `source` and each problem."""
    try:
        document = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise TokensFileError(f"{source}:{line}: not valid YAML") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        # Beside what YAML itself refuses: a date of month 99, a number of thousands of
        # digits, nesting without end.
        raise TokensFileError(f"{source}: not valid YAML") from None
    try:
        entries = TokensFile.model_validate(document).tokens
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in one['loc']) or 'file'}: "
            f"{one['msg'].removeprefix('Value error, ')}"
            for one in error.errors(include_url=False, include_input=False)
        )
        raise TokensFileError(f"{source}: {problems}") from None
    for what in ("name", "sha256"):
        values = [getattr(entry, what) for entry in entries]
        if len(set(values)) != len(values):
            raise TokensFileError(f"{source}: two tokens have the same {what}")
    return entries


class TokenStore:
    """The tokens in force. Safe to use from several threads.

    A change of the file is noticed by a call at most a second later. A file that became
    unreadable or invalid changes nothing: the last good tokens stay in force, `error` says why,
    and a warning is logged. To revoke everything, leave `tokens: []` in the file.
    """

    def __init__(
        self,
        path: Path,
        *,
        namespace_scope: bool = True,
        in_force: tuple[TokenEntry, ...] | None = None,
    ) -> None:
        """Read the file. When that fails, the tokens `in_force` at another process of the node
        hold; TokensFileError without them, because there is nothing to keep.

        Without `namespace_scope` every token reaches every namespace, within its rights.
        """
        self.path = path
        self.error: str | None = None
        self.warning: str | None = None
        self._namespace_scope = namespace_scope
        self._lock = threading.Lock()
        self._checked_ms: int | None = None
        self._entries: tuple[TokenEntry, ...] = ()
        self._stamp: tuple[int, ...] | None = None
        if in_force is None:
            self._load()
        else:
            self._entries = in_force
            self.reload()

    @property
    def entries(self) -> tuple[TokenEntry, ...]:
        """The tokens in force."""
        return self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def authenticate(self, token: str, now_ms: int) -> Principal | None:
        """The holder of `token`, or None when it is unknown or has expired.

        `now_ms` is UTC milliseconds. Takes the same time whichever entry matches, if any.
        """
        self._check_file(now_ms)
        digest = hash_token(token)
        match: TokenEntry | None = None
        for entry in self._entries:
            if hmac.compare_digest(entry.sha256, digest):
                match = entry
        if match is None or (match.expires_at is not None and now_ms >= match.expires_at):
            return None
        prefixes = match.prefixes if self._namespace_scope else (ANY,)
        return Principal(match.name, prefixes, frozenset(match.rights))

    def reload(self) -> bool:
        """Read the file now. False when it cannot be used; `error` then says why."""
        with self._lock:
            try:
                self._load()
            except TokensFileError as error:
                self._report(str(error))
                return False
            return True

    def _check_file(self, now_ms: int) -> None:
        last = self._checked_ms
        # A clock that was set back must not stop the checks.
        if last is not None and last <= now_ms < last + _CHECK_INTERVAL_MS:
            return
        self._checked_ms = now_ms
        try:
            changed = _stamp(self.path.stat()) != self._stamp
        except OSError:
            changed = True
        if changed:
            self.reload()

    def _load(self) -> None:
        try:
            # The stamp is taken from the open file: a rename between a stat and a read would
            # pair old content with the new stamp, and the change would never be seen.
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                content = file.read()
            text = content.decode("utf-8")
        except FileNotFoundError:
            raise TokensFileError(
                f"{self.path}: no such file; make it with `memsvc token add`"
            ) from None
        except OSError as error:
            raise TokensFileError(f"{self.path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise TokensFileError(f"{self.path}: not UTF-8 text") from None
        stamp = _stamp(status)
        try:
            entries = parse_tokens(text, str(self.path))
        finally:
            # A broken file is read, and complained about, once.
            self._stamp = stamp
        self._entries = entries
        self.error = None
        self.warning = _permission_warning(self.path, status.st_mode)
        if self.warning:
            _log.warning(self.warning)

    def _report(self, error: str) -> None:
        if error != self.error:
            _log.warning("%s; the tokens read before stay in force", error)
        self.error = error


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    # ctime and mode: a chmod must take back the warning about the mode.
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _permission_warning(path: Path, mode: int) -> str | None:
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be changed by other users: run chmod 600 {path}"
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        return f"{path} can be read by other users: run chmod 600 {path}"
    return None
