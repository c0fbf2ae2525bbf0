"""``python -m memsvc.cli``, for where the ``memsvc`` command is not on the path."""

from memsvc.cli import main

main()
