"""Numbers in sentences for people."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """ "1 memory", "2 memories"."""
    if number == 1:
        return f"1 {thing}"
    ends_in_ies = thing.endswith("y") and thing[-2] not in "aeiou"  # memories, but days
    plural = thing[:-1] + "ies" if ends_in_ies else thing + "s"
    return f"{number:,} {plural}"
