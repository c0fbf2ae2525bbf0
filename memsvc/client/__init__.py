"""Python client: the four calls, administration, and embedders. RoutedClient is for a primary
with replicas; AgentMemory does for an agent what needs understanding, and memsvc.client.ingest
makes memories of conversations.

from memsvc.client import LocalEmbedder, MemoryClient, NewMemory

embedder = LocalEmbedder()
with MemoryClient("127.0.0.1:8848") as memory:
    text = "The user prefers short answers."
    memory.write("acme/assistant", [NewMemory(text, vector=embedder.embed([text])[0])])
"""

from memsvc.client.admin import AdminClient, ExportedMemory
from memsvc.client.agent import AgentMemory
from memsvc.client.agent_async import AsyncAgentMemory
from memsvc.client.connection import Timeouts, Tls
from memsvc.client.embedders import (
    Embedder,
    EmbedderError,
    EmbedderMissing,
    EmbedderUnavailable,
    EmbeddingMismatch,
    EndpointEmbedder,
    HashingEmbedder,
    LocalEmbedder,
    TextRefused,
    local_embedder,
)
from memsvc.client.errors import ClientError
from memsvc.client.filters import parse_filter
from memsvc.client.forgotten import Forgotten
from memsvc.client.ingest import IngestReport, IngestSettings, Turn
from memsvc.client.memory import MemoryClient
from memsvc.client.messages import parse_namespace, to_plain, vector_array
from memsvc.client.recall import Context, ContextItem, RecallSettings
from memsvc.client.routed import RoutedClient, Routing
from memsvc.client.routing import NodeState
from memsvc.domain.types import (
    ForgetMode,
    Include,
    LateVector,
    Metadata,
    Mode,
    Namespace,
    NewMemory,
    RankOptions,
    Status,
    Touch,
    TouchKind,
    Update,
)

__all__ = [
    "AdminClient",
    "AgentMemory",
    "AsyncAgentMemory",
    "ClientError",
    "Context",
    "ContextItem",
    "Embedder",
    "EmbedderError",
    "EmbedderMissing",
    "EmbedderUnavailable",
    "EmbeddingMismatch",
    "EndpointEmbedder",
    "ExportedMemory",
    "ForgetMode",
    "Forgotten",
    "HashingEmbedder",
    "Include",
    "IngestReport",
    "IngestSettings",
    "LateVector",
    "LocalEmbedder",
    "MemoryClient",
    "Metadata",
    "Mode",
    "Namespace",
    "NewMemory",
    "NodeState",
    "RankOptions",
    "RecallSettings",
    "RoutedClient",
    "Routing",
    "Status",
    "TextRefused",
    "Timeouts",
    "Tls",
    "Touch",
    "TouchKind",
    "Turn",
    "Update",
    "local_embedder",
    "parse_filter",
    "parse_namespace",
    "to_plain",
    "vector_array",
]
