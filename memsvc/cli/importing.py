"""memsvc import: write memories from a JSONL file, safely repeatable."""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

import click
from tqdm import tqdm

from memsvc.cli import options
from memsvc.cli.embedding import find_embedder
from memsvc.cli.failures import Failure
from memsvc.cli.lines import Line, read_line
from memsvc.cli.output import clean, emit_json
from memsvc.client import ClientError, Embedder, MemoryClient, NewMemory, Status, Update
from memsvc.domain.types import Namespace, Outcome
from memsvc.domain.wording import counted
from memsvc.v1 import memory_service_pb2 as pb

# A batch must stay well below server.max_message_bytes (16 MiB by default).
MAX_BATCH_BYTES: Final = 3 * 1024 * 1024
FIRST_DELAY_S: Final = 0.5
MAX_DELAY_S: Final = 30.0
_ITEM = re.compile(r"items\[(\d+)\]")


@dataclass(slots=True)
class Importer:
    """Sends batches, waits where the service asks for it, and counts what became of them."""

    client: MemoryClient
    embedder: Embedder | None
    retries: int
    keep_going: bool
    tell: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    counts: Counter[str] = field(default_factory=Counter)
    done: int = 0
    """Number of the last line that needs no further attention."""
    lacking: str = ""
    """Why there is no embedder. Told with the first line that needs one."""

    def send(self, batch: list[Line]) -> None:
        """Writes lines of one namespace. Failure when one is refused, unless keep_going."""
        last = batch[-1].number
        batch = self._embedded(batch)
        while batch:
            try:
                self._write(batch)
                break
            except ClientError as error:
                batch = self._without_refused(batch, error)
        self.done = last

    def _embedded(self, batch: list[Line]) -> list[Line]:
        bare = [i for i, line in enumerate(batch) if line.memory.vector is None]
        if bare and self.lacking:
            self.tell(f"lines without a vector will be found by words only: {self.lacking}")
            self.lacking = ""
        if self.embedder is None or not bare:
            return batch
        rows = self.embedder.embed([batch[i].text for i in bare])
        for i, row in zip(bare, rows, strict=True):
            batch[i] = replace(batch[i], memory=batch[i].memory._replace(vector=row))
        return batch

    def _write(self, batch: list[Line]) -> None:
        namespace = batch[0].namespace
        items = [line.memory for line in batch]
        results = self._retrying(namespace, items).results
        later: list[Update] = []
        for line, result in zip(batch, results, strict=True):
            outcome = Outcome(result.outcome)
            if outcome is Outcome.EXISTS and Status(result.status) is Status.FORGOTTEN:
                # Forgotten on purpose: an old file must not bring it back.
                self.counts["exists_forgotten"] += 1
            else:
                self.counts[outcome.name.lower()] += 1
            if outcome is Outcome.CREATED and line.status is not line.memory.status:
                later.append(Update(result.id, status=line.status, reason="import"))
        if later:
            self._retrying(namespace, later)

    def _retrying(
        self, namespace: Namespace, items: list[NewMemory] | list[Update]
    ) -> pb.WriteResponse:
        """One batch, again and again while the service asks for patience."""
        request_id = f"import-{random.getrandbits(64):016x}"
        delay = FIRST_DELAY_S
        for attempt in range(self.retries + 1):
            try:
                return self.client.write(namespace, items, request_id=request_id)
            except ClientError as error:
                if not error.retriable or attempt == self.retries:
                    raise
                wait = delay * random.uniform(0.8, 1.2)
                if error.retry_after_ms is not None:
                    wait = max(wait if error.unreachable else 0.0, error.retry_after_ms / 1000)
                self.counts["retries"] += 1
                self.tell(f"{error.message}; trying again in {wait:.1f} s")
                self.sleep(wait)
                delay = min(MAX_DELAY_S, delay * 2)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _without_refused(self, batch: list[Line], error: ClientError) -> list[Line]:
        """The batch without the lines that an INVALID_ARGUMENT is about."""
        wrong: dict[int, str] = {}
        for violation in error.violations:
            match = _ITEM.match(violation.field)
            if match and int(match[1]) < len(batch):
                name = violation.field[match.end() :].removeprefix(".memory").lstrip(".")
                where = f"{name}: " if name else ""
                wrong.setdefault(int(match[1]), where + violation.description)
        if not wrong:
            raise error
        told = tuple(f"line {batch[i].number}: {text}" for i, text in sorted(wrong.items()))
        if not self.keep_going:
            raise Failure(
                "the service refuses lines of the file",
                lines=told,
                hint="correct them, or skip them with --keep-going; what was imported before "
                "stays, and is not stored again",
            )
        for text in told:
            self.tell(f"skipped {text}")
        self.counts["refused"] += len(wrong)
        return [line for i, line in enumerate(batch) if i not in wrong]


def read_lines(
    file: IO[bytes], importer: Importer, default: Namespace | None, skip: int, now_ms: int
) -> Iterator[tuple[Line | None, int]]:
    """Lines of the file and their sizes in bytes; None for what needs no writing."""
    for number, raw in enumerate(file, 1):
        if number <= skip or not raw.strip():
            yield None, len(raw)
            continue
        try:
            line = read_line(raw.decode("utf-8"), number, default, now_ms)
        except ValueError as error:
            text = f"line {number}: {error}"
            if not importer.keep_going:
                raise Failure(text, hint="skip such lines with --keep-going") from None
            importer.tell(f"skipped {text}")
            importer.counts["unreadable"] += 1
            yield None, len(raw)
            continue
        if line.gone:
            importer.counts["expired"] += 1
        yield (None if line.gone else line), len(raw)


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "-n",
    "--namespace",
    type=options.namespace_value,
    metavar="TENANT/AGENT[/SESSION]",
    help="For lines that name none.",
)
@click.option(
    "--batch", type=click.IntRange(1, 1000), default=200, show_default=True, help="Items a call."
)
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Leave out the first lines.")
@click.option("--keep-going", is_flag=True, help="Skip lines that are wrong, and count them.")
@click.option(
    "--retries", type=click.IntRange(min=0), default=8, show_default=True, help="For each call."
)
@options.embedder_option
@options.embedding_option
@options.json_option
@options.connection
def import_(
    target: options.Target,
    file: str,
    namespace: Namespace | None,
    batch: int,
    skip: int,
    keep_going: bool,
    retries: int,
    embedder_choice: str,
    embedding: str,
    as_json: bool,
) -> None:
    """Write the memories of a JSONL file ("-" for standard input).

    A line is an object with namespace and the fields of a memory, as `memsvc export` writes
    it; {"content": "…"} is enough with --namespace. Lines without a vector are embedded
    here, if the embedder of the store is at hand.

    It may be repeated: what is there already is recognised by its dedup_key (made from session,
    seq and text where a line has none) and not stored again; what was forgotten stays
    forgotten.

    \b
    Examples:
      memsvc import backup.jsonl
      memsvc import chats.jsonl -n acme/assistant --keep-going
      memsvc import backup.jsonl --skip 120000      # go on after an interruption
    """
    with target.connect(embedding=embedding, least_timeout=60.0) as client:
        # A service that was never there is told at once; one that goes away is waited for.
        client.health()
        embedder, lacking = find_embedder(client, embedder_choice)
        importer = Importer(client, embedder, retries, keep_going, tell=_tell, lacking=lacking)
        total = None if file == "-" else Path(file).stat().st_size
        with (
            click.open_file(file, "rb") as stream,
            _bar(total) as bar,
        ):
            try:
                _run(importer, stream, namespace, skip, batch, bar)
            except (KeyboardInterrupt, Failure, ClientError):
                if importer.done:
                    _tell(f"stopped after line {importer.done}; go on with --skip {importer.done}")
                raise
    _report(importer.counts, as_json)


def _tell(text: str) -> None:
    # Not on standard output, and above the progress bar instead of into it.
    tqdm.write(clean(text), file=sys.stderr)


def _bar(total: int | None) -> tqdm[Any]:
    return tqdm(total=total, unit="B", unit_scale=True, disable=None, leave=False)


def _run(
    importer: Importer,
    stream: IO[bytes],
    default: Namespace | None,
    skip: int,
    most: int,
    bar: tqdm[Any],
) -> None:
    pending: list[Line] = []
    pending_bytes = 0
    for line, length in read_lines(stream, importer, default, skip, int(time.time() * 1000)):
        bar.update(length)
        if line is None:
            continue
        full = len(pending) >= most or pending_bytes + length > MAX_BATCH_BYTES
        if pending and (full or line.namespace != pending[0].namespace):
            importer.send(pending)
            pending, pending_bytes = [], 0
        pending.append(line)
        pending_bytes += length
    if pending:
        importer.send(pending)


def _report(counts: Counter[str], as_json: bool) -> None:
    if as_json:
        emit_json(dict(sorted(counts.items())))
        return
    click.echo(f"{counted(counts['created'], 'memory')} imported")
    words = {
        "exists": "were there already",
        "exists_forgotten": "were forgotten before and stay so",
        "expired": "are past their time",
        "refused": "were refused",
        "unreadable": "could not be read",
    }
    for name, text in words.items():
        if counts[name]:
            click.echo(f"  {counts[name]:,} {text}")
