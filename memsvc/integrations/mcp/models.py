"""What the tools answer, as models: their schemas tell a client what to expect."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Remembered(BaseModel):
    """What became of a fact."""

    id: str = Field(description="Id of the memory, for get_full_text and forget.")
    outcome: Literal["stored", "already_known", "withheld"] = Field(
        description="stored: new. already_known: this or something that says the same was there, "
        "and was refreshed. withheld: a person put this text away; it was not stored again."
    )
    found_by_meaning: bool = Field(description="False: only the words in it will find it.")


class Memory(BaseModel):
    """One memory."""

    id: str = Field(description="For get_full_text and forget.")
    summary: str = Field(description="What it says, in short.")
    said_at: str | None = Field(None, description="When it was said or stored, UTC.")
    topic: str = ""
    session: str = Field("", description="Conversation it arose in.")
    similarity: float | None = Field(None, description="Closeness in meaning, -1 to 1.")


class Recalled(BaseModel):
    """What is remembered about a query."""

    memories: list[Memory] = Field(description="The most useful first.")
    incomplete: str = Field("", description="Why some may be missing; empty = none are.")


class Forgotten(BaseModel):
    """What was forgotten."""

    mode: Literal["fade", "erase"]
    changed: list[str] = Field(description="Ids that were (with dry_run: would be) forgotten.")
    not_found: list[str] = Field(description="Ids that no memory here has.")
    dry_run: bool


class FullText(BaseModel):
    """A memory in full."""

    id: str
    text: str


class MemoryStatus(BaseModel):
    """How the memory is."""

    ready: bool
    namespace: str = Field(description="Whose memory this is.")
    searches_by: Literal["meaning and words", "words"]
    note: str = Field("", description="Why it searches by words only, or is not ready.")
    degraded: str = Field("", description="Why the service does less than usual; empty = no.")
    role: str
    version: str
