"""Items of LangGraph as memories, and back.

The content of a memory is JSON with namespace, key and value. Attributes hold what is filtered by:
who it is, the namespace and all those above it, and the texts and numbers of the value. A memory
has one vector, so an item with several searched texts has a further memory for each, its parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from langgraph.store.base import Item, SearchItem

from memsvc.domain.limits import (
    MAX_ATTRIBUTE_LIST,
    MAX_ATTRIBUTE_VALUE_BYTES,
    MAX_ATTRIBUTES,
    MAX_CONTENT_BYTES,
    MAX_SUMMARY_BYTES,
    MAX_TTL_MS,
)
from memsvc.domain.types import AttributeValue, Metadata, NewMemory, Vector
from memsvc.integrations.langgraph.matching import PREFIX, fits, scalars
from memsvc.v1 import memory_service_pb2 as pb

ITEM: Final = "lg_item"
"""Digest of namespace and key: the same for the same item."""
PATH: Final = "lg_path"
"""The namespace and all above it, labels joined by ".", which no label may hold."""
PUT_US: Final = "lg_put"
"""When it was put, UTC microseconds."""
TTL_MS: Final = "lg_ttl"
"""Its lifetime, where it has one: what a read gives it anew."""
FOUND: Final = "lg_found"
"""Whether queries may find it (``index`` is not False)."""
REST: Final = "lg_rest"
"""Set where the value has more to filter by than attributes hold."""
PARTS: Final = "lg_parts"
"""How many parts it has, if any."""
PART: Final = "lg_part"
"""In a part, instead of lg_item: the digest of its item."""
MAX_TEXTS: Final = 64
"""Texts of one item that are searched by meaning."""
_OWN: Final = (ITEM, PATH, PUT_US, TTL_MS, FOUND, REST, PARTS)
MAX_VALUES: Final = MAX_ATTRIBUTES - len(_OWN)
"""Texts and numbers of a value that the service filters by."""
SOURCE: Final = "langgraph"

Identity = tuple[tuple[str, ...], str]


def digest(identity: Identity) -> str:
    """The same for the same item, on every machine."""
    text = json.dumps([list(identity[0]), identity[1]])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def path_of(namespace: tuple[str, ...]) -> str:
    """A namespace as one text."""
    return ".".join(namespace)


def lifetime_ms(minutes: float | None) -> int:
    """A TTL in ms; 0 = for ever. ValueError out of bounds."""
    if minutes is None:
        return 0
    if not isinstance(minutes, int | float):
        raise TypeError(f"ttl: expected minutes as a number, not {type(minutes).__name__}")
    ms = round(minutes * 60_000) if minutes == minutes and abs(minutes) < 1e15 else 0
    if not 1 <= ms <= MAX_TTL_MS:
        raise ValueError(
            f"ttl: expected minutes above 0 and up to {MAX_TTL_MS // 60_000} (100 years), or None "
            f"for no end, not {minutes}"
        )
    return ms


@dataclass(frozen=True, slots=True)
class Put:
    """An item to be stored, checked. ``texts`` are what is searched: one vector for each, where
    there are vectors."""

    identity: Identity
    content: str
    attributes: Mapping[str, AttributeValue]
    ttl_ms: int
    put_us: int
    texts: tuple[str, ...]
    vectors: tuple[Vector, ...] = ()

    @property
    def digest(self) -> str:
        """Of its identity."""
        return str(self.attributes[ITEM])

    @property
    def summary(self) -> str:
        """Its texts as far as they fit."""
        return _short("\n".join(self.texts))

    @property
    def metadata(self) -> Metadata:
        """Of its memory."""
        return Metadata(ts=self.put_us // 1_000, source=SOURCE, attributes=self.attributes)

    @property
    def vector(self) -> Vector | None:
        """Of its memory: the one there is, if there is one."""
        return self.vectors[0] if len(self.vectors) == 1 else None

    @property
    def parts(self) -> list[NewMemory]:
        """Memories beside its own: one for each text, where there are several."""
        if len(self.vectors) < 2:
            return []
        kept = {name: one for name, one in self.attributes.items() if name not in _OWN}
        shared = {name: self.attributes[name] for name in (PATH, REST) if name in self.attributes}
        attributes = {PART: self.digest, **shared, **kept}
        metadata = Metadata(ts=self.put_us // 1_000, source=SOURCE, attributes=attributes)
        return [
            NewMemory(_short(text), "", "", vector, metadata, ttl_ms=self.ttl_ms)
            for text, vector in zip(self.texts, self.vectors, strict=True)
        ]


def _short(text: str) -> str:
    return text.encode()[:MAX_SUMMARY_BYTES].decode(errors="ignore")


def checked(
    identity: Identity,
    value: Mapping[str, Any],
    texts: Sequence[str],
    ttl_ms: int,
    put_us: int,
    *,
    by_meaning: bool,
) -> Put:
    """ValueError names what does not fit, TypeError what is no JSON."""
    namespace, key = identity
    named = f"item {key!r:.80}"
    if not isinstance(value, Mapping):
        raise TypeError(f"{named}: expected a dictionary, not {type(value).__name__}")
    envelope = {"namespace": list(namespace), "key": key, "value": dict(value)}
    try:
        content = json.dumps(envelope, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(content.encode())
        # As it will come back, so that a key that is no text is one here too.
        kept = json.loads(content, object_pairs_hook=_each_once)["value"]
    except UnicodeEncodeError:
        raise ValueError(
            f"{named}: half of a character (a lone surrogate), which cannot be stored; "
            "text.encode(errors='replace').decode() puts a question mark there"
        ) from None
    except ValueError as error:
        raise ValueError(f"{named}: {error}") from None
    except TypeError as error:
        raise TypeError(f"{named}: {error}") from None
    if size > MAX_CONTENT_BYTES:
        raise ValueError(
            f"{named}: {size:,} bytes as JSON, at most {MAX_CONTENT_BYTES:,}; divide it, or "
            "keep large documents elsewhere and their place here"
        )
    if by_meaning and len(texts) > MAX_TEXTS:
        raise ValueError(
            f"{named}: its index has {len(texts)} texts, at most {MAX_TEXTS}; name fewer "
            "fields, or put its elements as items of their own"
        )
    paths = [path_of(namespace[: depth + 1]) for depth in range(len(namespace))]
    if len(paths) > MAX_ATTRIBUTE_LIST:
        raise ValueError(f"namespace: {len(paths)} labels, at most {MAX_ATTRIBUTE_LIST}")
    if len(paths[-1].encode()) > MAX_ATTRIBUTE_VALUE_BYTES:
        raise ValueError(
            f"namespace: its labels have {len(paths[-1].encode()):,} bytes, at most "
            f"{MAX_ATTRIBUTE_VALUE_BYTES:,}"
        )
    attributes: dict[str, AttributeValue] = {
        ITEM: digest(identity),
        PATH: tuple(paths),
        PUT_US: put_us,
        FOUND: bool(texts),
    }
    if by_meaning and len(texts) > 1:
        attributes[PARTS] = len(texts)
    if ttl_ms:
        attributes[TTL_MS] = ttl_ms
    names: dict[str, AttributeValue] = {}
    rest = False
    for name, scalar in scalars(kept):
        if name and name not in names and fits(scalar) and len(names) < MAX_VALUES:
            names[name] = scalar
        else:
            rest = True
    if rest:
        attributes[REST] = True
    return Put(identity, content, {**attributes, **names}, ttl_ms, put_us, tuple(texts))


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """ValueError for two names that are one as JSON, such as 1 and "1": one value would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two of its names are {twice!r} as JSON; give each a name of its own")
    return found


@dataclass(frozen=True, slots=True)
class Stored:
    """An item, or a part of one, as the service holds it. ``content`` only where it was asked
    for, ``digest`` that of the item."""

    id: str
    version: int
    digest: str
    is_part: bool
    parts: int
    namespace: tuple[str, ...]
    put_us: int
    ttl_ms: int
    names: frozenset[str]
    created_ms: int
    content: str
    score: float | None

    @classmethod
    def of(cls, hit: pb.Hit, score: float | None = None) -> Stored:
        """From an answer."""
        attributes = hit.metadata.attributes
        is_part = PART in attributes
        paths = attributes[PATH].list_value.values if PATH in attributes else ()
        return cls(
            hit.id,
            hit.version,
            attributes[PART if is_part else ITEM].string_value,
            is_part,
            attributes[PARTS].int_value if PARTS in attributes else 0,
            tuple(max(paths, key=len).split(".")) if paths else (),
            attributes[PUT_US].int_value if PUT_US in attributes else 0,
            attributes[TTL_MS].int_value if TTL_MS in attributes else 0,
            frozenset(
                name for name in attributes if name.startswith(PREFIX) or name in (*_OWN, PART)
            ),
            hit.created_at,
            hit.content,
            score,
        )

    def value(self) -> dict[str, Any]:
        """What was put."""
        found: dict[str, Any] = json.loads(self.content)["value"]
        return found

    def item(self) -> Item:
        """For get."""
        return Item(**self._fields())

    def search_item(self) -> SearchItem:
        """For search."""
        return SearchItem(**self._fields(), score=self.score)

    def _fields(self) -> dict[str, Any]:
        created = datetime.fromtimestamp(self.created_ms / 1_000, UTC)
        # Two clocks: the service's and that of whoever put it.
        updated = max(created, datetime.fromtimestamp(self.put_us / 1_000_000, UTC))
        return {
            "value": self.value(),
            "key": json.loads(self.content)["key"],
            "namespace": self.namespace,
            "created_at": created,
            "updated_at": updated,
        }
