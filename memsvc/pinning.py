"""One BLAS thread in every process that scans vectors: import this before numpy.

Two threads scanning 5,000 x 1536 numbers: 2,210 scans/s and p99 1.25 ms with one BLAS thread
each, 974 scans/s and p99 29 ms with two. What the environment already says wins.
"""

from __future__ import annotations

import os
from typing import Final

VARIABLES: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

for _name in VARIABLES:
    os.environ.setdefault(_name, "1")


def environment() -> dict[str, str]:
    """For a process that this one starts beside itself: its own, with one thread in any case."""
    return {**os.environ, **dict.fromkeys(VARIABLES, "1")}
