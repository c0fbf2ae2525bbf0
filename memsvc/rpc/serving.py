"""What the standard health service says of a node, name by name.

Clients without our SDK balance their calls by it: gRPC asks each node for the name in its
service config and calls only those that answer SERVING.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from memsvc.admin.v1 import admin_service_pb2
from memsvc.domain.recovery import Recovery
from memsvc.domain.types import HealthAnswer
from memsvc.v1 import memory_service_pb2

_MEMORY: Final = memory_service_pb2.DESCRIPTOR.services_by_name["MemoryService"]

WHOLE_NODE: Final = ""
"""The node takes calls."""
MEMORY_SERVICE: Final = _MEMORY.full_name
"""The node is fit for reads: it is ready, and on a replica the lag is small."""
WRITES: Final = _MEMORY.methods_by_name["Write"].full_name
"""The node takes Write and Forget: a primary, or one that stands alone."""
ADMIN_SERVICE: Final = admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
"""The node takes calls."""
NAMES: Final = (WHOLE_NODE, MEMORY_SERVICE, WRITES, ADMIN_SERVICE)
"""Names that the health service knows."""

NOTHING: Final[Mapping[str, bool]] = dict.fromkeys(NAMES, False)
"""What a node serves that is not ready."""


class Serving:
    """What a node serves, from one look a second at its health."""

    def __init__(self) -> None:
        self._reads = Recovery()

    def look(self, health: HealthAnswer, max_lag_ms: int) -> Mapping[str, bool]:
        """Whether each of NAMES is served. ``max_lag_ms`` 0 = however far it is behind.

        Reads come back only after ten good looks when the lag was too large. A node that
        was not ready needs no such proof: it says itself when it is. Nor does a primary, which
        is behind nobody, whatever it was as a replica.
        """
        if health.role != "replica":
            self._reads = Recovery()
        near = self._reads.check(not max_lag_ms or health.lag_ms <= max_lag_ms)
        takes_calls = health.ready if health.takes_calls is None else health.takes_calls
        return {
            # By this name nodes are restarted, which mends no clock.
            WHOLE_NODE: takes_calls,
            MEMORY_SERVICE: health.ready and near,
            WRITES: takes_calls and health.role != "replica",
            ADMIN_SERVICE: takes_calls,
        }
