"""The Model Context Protocol: memory as tools for any client of it (Claude Code, IDEs, agents).

``memsvc mcp`` runs it; needs the extra ``mcp``. See docs/howto/mcp.md.
"""

from memsvc.integrations.mcp.backend import Backend
from memsvc.integrations.mcp.server import make_server

__all__ = ["Backend", "make_server"]
