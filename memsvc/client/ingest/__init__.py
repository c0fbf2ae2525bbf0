"""From conversations to memories; see docs/howto/sdk.md.

from memsvc.client import LocalEmbedder, MemoryClient
from memsvc.client.ingest import Ingestor, Turn

with (
    MemoryClient("127.0.0.1:8848") as client,
    Ingestor(client, "acme/assistant", LocalEmbedder(), spill="memories.spill") as ingest,
):
    ingest.add(Turn("I'm allergic to nuts.", role="user", session="s1"))
"""

from memsvc.client.ingest.chunking import PieceSize, pieces
from memsvc.client.ingest.chunks import Chunk, Turn
from memsvc.client.ingest.importance import importance
from memsvc.client.ingest.ingestor import Ingestor
from memsvc.client.ingest.outbox import SpillError
from memsvc.client.ingest.report import IngestReport
from memsvc.client.ingest.settings import IngestSettings, Windowing
from memsvc.client.ingest.summaries import is_instruction, summary
from memsvc.client.messages import LAST_SEQ

__all__ = [
    "LAST_SEQ",
    "Chunk",
    "IngestReport",
    "IngestSettings",
    "Ingestor",
    "PieceSize",
    "SpillError",
    "Turn",
    "Windowing",
    "importance",
    "is_instruction",
    "pieces",
    "summary",
]
