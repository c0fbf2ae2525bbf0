"""Numbers in sentences for people."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """ "1 memory", "2 memories"."""
    if number == 1:
        return f"1 {thing}"
    plural = thing[:-1] + "ies" if thing.endswith("y") else thing + "s"
    return f"{number:,} {plural}"
