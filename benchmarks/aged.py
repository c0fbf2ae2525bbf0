"""A server whose clock is days behind: ``python -m benchmarks.aged DAYS --config FILE``. What is
written to it is old when another one opens the store."""

from __future__ import annotations

import sys

from memsvc import server
from memsvc.service import node
from memsvc.service.derived import DAY_MS


def main() -> int:
    """Serves until told to stop."""
    behind = int(sys.argv.pop(1)) * DAY_MS
    defaults = node.Node.__init__.__kwdefaults__
    defaults["clock"] = lambda: node.system_clock() - behind
    return server.main()


if __name__ == "__main__":
    sys.exit(main())
