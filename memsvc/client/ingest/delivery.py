"""One batch, until it is settled or has to wait: retries, isolation, sending less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memsvc.client.errors import ClientError
from memsvc.client.ingest.chunks import Chunk
from memsvc.client.ingest.retrying import (
    LONGEST_RETRY_S,
    Sampler,
    about_items,
    asked_pause_s,
    for_people,
    jittered_backoff_s,
    overloaded,
)
from memsvc.client.ingest.sending import Fate, Parcel, Sender
from memsvc.client.ingest.settings import IngestSettings
from memsvc.domain.types import Vector


@dataclass(frozen=True, slots=True)
class Delivered:
    """Parcels in the order of their chunks; ``error`` is why some have no fate yet."""

    parcels: Sequence[Parcel]
    error: Exception | None = None
    note: str = ""
    """What else is to be told: why some went without a vector."""


class Delivery:
    """Sends batches. Not safe for threads."""

    def __init__(
        self,
        sender: Sender,
        settings: IngestSettings,
        pause: Callable[[float], bool],
        random: Callable[[], float],
    ) -> None:
        """``pause`` waits so many seconds and tells whether to stop instead of going on;
        ``random`` gives 0 to 1."""
        self._sender = sender
        self._settings = settings
        self._pause = pause
        self._random = random
        self._sampler = Sampler()
        self._embedded: dict[str, tuple[str, Vector]] = {}
        """Vectors of the last batch that was not settled, with their texts, by key: a model may
        cost money, and the batch comes again."""

    def deliver(self, chunks: Sequence[Chunk]) -> Delivered:
        """Never raises: whatever goes wrong stands in the answer."""
        parcels = [Parcel(chunk) for chunk in chunks]
        self._sample(parcels)
        note = ""
        try:
            note = self._embed([parcel for parcel in parcels if parcel.fate is None])
            error = self._send_with_retries(parcels)
        except Exception as failed:  # the thread must go on, and somebody be told
            error = failed
        except BaseException as ended:  # also by what ends another thread, or a coroutine
            error = RuntimeError(f"the embedder raised {type(ended).__name__}: {ended}")
        self._embedded = {
            parcel.chunk.key: (parcel.chunk.content, parcel.vector)
            for parcel in parcels
            if parcel.fate is None and parcel.vector is not None
        }
        return Delivered(parcels, error, note)

    def _embed(self, parcels: Sequence[Parcel]) -> str:
        for parcel in parcels:
            text, vector = self._embedded.get(parcel.chunk.key, ("", None))
            if text == parcel.chunk.content:
                parcel.vector = vector
        return self._sender.embed([parcel for parcel in parcels if parcel.vector is None])

    def _send_with_retries(self, parcels: Sequence[Parcel]) -> Exception | None:
        attempt = 0
        while True:
            try:
                self._send(parcels)
            except ClientError as error:
                attempt += 1
                asked = asked_pause_s(error)
                if for_people(error):
                    return error
                if attempt > self._settings.retries or asked > LONGEST_RETRY_S:
                    if overloaded(error) and self._settings.sample_down:
                        self._sampler.overloaded()
                        self._sample(parcels)
                    return error
                pause = max(
                    asked, jittered_backoff_s(self._settings.backoff_s, attempt, self._random)
                )
                if self._pause(pause):
                    return error
            else:
                self._sampler.succeeded()
                self._sender.finished()
                return None

    def _send(self, parcels: Sequence[Parcel]) -> None:
        """Sends all; halves what is refused until the chunks at fault stand alone."""
        try:
            self._sender.send(parcels)
        except ClientError as error:
            if not about_items(error):
                raise
            rest = [parcel for parcel in parcels if parcel.fate is None]
            if len(rest) == 1:
                rest[0].fate, rest[0].why = Fate.REFUSED, _told(error)
                return
            half = len(rest) // 2
            self._send(rest[:half])
            self._send(rest[half:])

    def _sample(self, parcels: Sequence[Parcel]) -> None:
        """Lets go what the sampler does not let through."""
        for parcel in parcels:
            chunk = parcel.chunk
            if parcel.fate is None and not self._sampler.keeps(chunk.key, chunk.importance):
                parcel.fate = Fate.SAMPLED_OUT


def _told(error: ClientError) -> str:
    return f"{error.message} [{error.reason or error.code}]"
