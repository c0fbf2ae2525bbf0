"""Recall on the agent's side: what to ask for, which of the answers to keep, and how they are put
before a model.

Pure functions (``query``, ``rerank``, ``context``) under one pipeline with caches. Most callers
want ``memsvc.client.AgentMemory``.
"""

from memsvc.client.recall.context import Context, ContextItem
from memsvc.client.recall.pipeline import RecallPipeline
from memsvc.client.recall.settings import RecallSettings
from memsvc.client.recall.tokens import TokenCounter, conservative_tokens

__all__ = [
    "Context",
    "ContextItem",
    "RecallPipeline",
    "RecallSettings",
    "TokenCounter",
    "conservative_tokens",
]
