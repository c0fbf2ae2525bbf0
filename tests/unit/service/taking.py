"""How much a rate limiter lets through."""

from __future__ import annotations

from memsvc.domain.errors import ResourceExhausted
from memsvc.service.limits import RateLimiter


def taken(limiter: RateLimiter, tries: int, agent: str = "a") -> int:
    """Calls of tenant t that were let through, of so many."""
    done = 0
    for _ in range(tries):
        try:
            limiter.take("t", agent)
            done += 1
        except ResourceExhausted:
            pass
    return done
