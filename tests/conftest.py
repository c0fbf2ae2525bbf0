"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A loaded machine is no fault of an example.
settings.register_profile("memsvc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("memsvc")
