"""memsvc as the long-term store of LangGraph graphs; needs the extra ``langgraph``. See
docs/howto/langgraph.md."""

from memsvc.integrations.langgraph.store import MemsvcStore, StoreConflict, StoreIncomplete

__all__ = ["MemsvcStore", "StoreConflict", "StoreIncomplete"]
