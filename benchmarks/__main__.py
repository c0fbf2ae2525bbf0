"""``python -m benchmarks``."""

import sys

# Before anything imports numpy: one BLAS thread, as in serving.
from memsvc import pinning  # noqa: F401

if __name__ == "__main__":
    from benchmarks.cli import main

    sys.exit(main())
