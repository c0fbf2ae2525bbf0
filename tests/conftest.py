"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# A loaded machine is no fault of an example.
settings.register_profile("memsvc", deadline=None)
settings.load_profile("memsvc")
