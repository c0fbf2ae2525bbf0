"""What is not written yet: in a file, so that it outlives the process, or in memory.

The file is an SQLite database, since what it must hold out is what databases are for: a process
that is killed at any moment. A chunk is in it from when ``add`` returns until the service has
acknowledged it. In the instants between, a chunk may be sent twice; its key makes the second
time harmless. Loss of power may undo the last moments (the file is not synced at each change),
and damages nothing.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from memsvc.client.ingest.chunks import (
    Chunk,
    Turn,
    chunk_from,
    dumped,
    grows,
    holds,
    told_apart,
    turn_from,
)

FORMAT: Final = 1
"""Of the file, in its user_version. Another one is refused."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS facts(name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS turns(
    session TEXT NOT NULL, seq INTEGER NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS turns_by_session ON turns(session);
CREATE TABLE IF NOT EXISTS chunks(
    number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE,
    change INTEGER NOT NULL DEFAULT 0, importance REAL NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS chunks_by_importance ON chunks(importance, number);
"""

_INSERT: Final = """
INSERT INTO chunks(key, importance, body) VALUES(?, ?, ?)
ON CONFLICT(key) DO UPDATE SET
    body = excluded.body, change = change + 1, importance = max(importance, excluded.importance)
"""


class SpillError(RuntimeError):
    """The spill file cannot be used; the message says why and what to do."""


class Waiting(NamedTuple):
    """A chunk that waits. ``change`` rises when it is replaced."""

    number: int
    change: int
    chunk: Chunk


class Outbox:
    """Chunks that wait, in the order they came, and the open ends of conversations. Not safe
    for threads at the same time; made in one and used in another."""

    def __init__(self, path: Path | None, owner: str) -> None:
        """``path`` None = in memory. ``owner`` is the tenant/agent of all of it. Raises
        SpillError when the file is in use, of another owner, damaged, or cannot be written."""
        self._path = path
        with self._explained():
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                # What people said: for nobody else's eyes. Never opened where it exists: to close
                # a file takes away the locks that this process has on it, also SQLite's.
                if path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
                with suppress(FileExistsError):
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            self._db = sqlite3.connect(
                path or ":memory:", timeout=0, isolation_level=None, check_same_thread=False
            )
            try:
                self._open(owner)
            except BaseException:
                self._db.close()
                raise

    def _open(self, owner: str) -> None:
        db = self._db
        # Exclusive: two processes that send the same chunks would do it all twice.
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=NORMAL"):
            db.execute(f"PRAGMA {pragma}")
        db.execute("PRAGMA secure_delete=ON")
        with self._transaction():
            (found,) = db.execute("PRAGMA user_version").fetchone()
            if found not in (0, FORMAT):
                raise SpillError(
                    f"{self._path}: a spill file of format {found}, this version reads {FORMAT}; "
                    "let the version that wrote it finish, or choose another path"
                )
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version={FORMAT}")
            db.execute("INSERT OR IGNORE INTO facts VALUES('owner', ?)", (owner,))
            (other,) = db.execute("SELECT value FROM facts WHERE name = 'owner'").fetchone()
        if other != owner:
            raise SpillError(
                f"{self._path}: holds chunks of {other}, not of {owner}; give each tenant/agent "
                "a spill file of its own"
            )
        (self.count,) = db.execute("SELECT count(*) FROM chunks").fetchone()
        """Chunks that wait."""

    def put(
        self,
        chunks: Iterable[Chunk],
        open_turns: Mapping[str, Sequence[tuple[int, Turn]]],
        most: int | None,
        busy: int = 0,
    ) -> int:
        """Adds chunks and replaces the open ends of the sessions given, all or nothing. Beyond
        ``most`` (None = no bound) the least important go, of equals the oldest; never those with
        a number up to ``busy``, which are being sent. Returns how many went."""
        with self._transaction():
            for session, turns in open_turns.items():
                self._db.execute("DELETE FROM turns WHERE session = ?", (session,))
                self._db.executemany(
                    "INSERT INTO turns VALUES(?, ?, ?)",
                    [(session, seq, dumped(turn)) for seq, turn in turns],
                )
            for chunk in chunks:
                self._add(chunk)
            (count,) = self._db.execute("SELECT count(*) FROM chunks").fetchone()
            dropped = 0
            if most is not None and count > most:
                dropped = self._db.execute(
                    "DELETE FROM chunks WHERE number IN (SELECT number FROM chunks "
                    "WHERE number > ? ORDER BY importance, number LIMIT ?)",
                    (busy, count - most),
                ).rowcount
        self.count = count - dropped
        return dropped

    def _add(self, chunk: Chunk) -> None:
        """A window that grew replaces what waits of it, unless the longer one waits already."""
        asked = "SELECT body FROM chunks WHERE key = ?"
        while row := self._db.execute(asked, (chunk.key,)).fetchone():
            waits = chunk_from(row[0]).content
            if holds(waits, chunk.content):
                return
            apart = told_apart(chunk, waits)
            if grows(waits, chunk.content) or apart.key == chunk.key:
                break
            chunk = apart
        self._db.execute(_INSERT, (chunk.key, chunk.importance, dumped(chunk)))

    def first(self, most: int) -> list[Waiting]:
        """The chunks that wait longest."""
        with self._explained():
            rows = self._db.execute(
                "SELECT number, change, body FROM chunks ORDER BY number LIMIT ?", (most,)
            ).fetchall()
            return [Waiting(number, change, chunk_from(body)) for number, change, body in rows]

    def first_number(self) -> int:
        """Number of the chunk that waits longest; 0 when none does."""
        return self._number("min")

    def last_number(self) -> int:
        """Number of the chunk that came last; 0 when none waits."""
        return self._number("max")

    def _number(self, which: str) -> int:
        with self._explained():
            (found,) = self._db.execute(f"SELECT {which}(number) FROM chunks").fetchone()
        return found or 0

    def settle(self, done: Iterable[Waiting]) -> None:
        """Forgets chunks, except those that were replaced since they were read."""
        with self._transaction():
            self._db.executemany(
                "DELETE FROM chunks WHERE number = ? AND change = ?",
                [(one.number, one.change) for one in done],
            )
            (count,) = self._db.execute("SELECT count(*) FROM chunks").fetchone()
        self.count = count

    def open_turns(self) -> dict[str, list[tuple[int, Turn]]]:
        """The open ends of conversations, by session, in the order they were put."""
        found: dict[str, list[tuple[int, Turn]]] = {}
        with self._explained():
            rows = self._db.execute("SELECT session, seq, body FROM turns ORDER BY rowid")
            for session, seq, body in rows.fetchall():
                found.setdefault(session, []).append((seq, turn_from(body)))
        return found

    def close(self) -> None:
        """Closes the file; what is in it stays."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._explained():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._db.in_transaction:  # on a full disk SQLite has rolled back itself
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            hint = ""
            if "locked" in str(error):
                hint = "; another process uses it: give each process a spill file of its own"
            raise SpillError(f"{self._path}: {error}{hint}") from error
        except sqlite3.DatabaseError as error:
            raise SpillError(
                f"{self._path}: {error}; the file is damaged or no spill file: move it away to go "
                "on without what it holds"
            ) from error
        except OSError as error:
            raise SpillError(f"{self._path}: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise SpillError(
                f"{self._path}: holds what this version does not read ({error}); move it away to "
                "go on without it"
            ) from error
