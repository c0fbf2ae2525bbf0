"""What the nodes of a group ask each other: gRPC in front of a GroupApi."""

from __future__ import annotations

from typing import Protocol

import grpc

from memsvc.domain.errors import Unavailable
from memsvc.domain.group import Seen
from memsvc.domain.replication import Standing
from memsvc.replication.v1 import group_service_pb2 as pb
from memsvc.replication.v1 import group_service_pb2_grpc as pb_grpc
from memsvc.rpc.replication import Doorkeeper, standing_message


class GroupApi(Protocol):
    """The part that a node plays in its group."""

    def status(self) -> Seen:
        """What it is. Waits for no other node, nor for a change of its role."""

    def fence(self, epoch: int, primary: str, store_id: str) -> tuple[bool, Seen]:
        """Follows ``primary`` and nobody of an epoch below from here on; whether it does, and
        what it is after that."""

    def prepare(self, node_id: str, epoch: int) -> tuple[str, Standing]:
        """Takes no changes for some seconds: why not ("" = it does), and where its log ends.
        Raises Unavailable or OSError when it cannot say so now."""

    def commit(self, node_id: str, epoch: int, primary: str) -> str:
        """Follows ``primary`` from here on: why not ("" = it does). Raises as ``prepare``."""

    def lead(self, epoch: int) -> bool:
        """Begins an epoch that another node has given up; whether it does."""


class GroupServicer(pb_grpc.GroupServiceServicer):
    """memsvc.replication.v1.GroupService."""

    def __init__(self, group: GroupApi, door: Doorkeeper) -> None:
        self._group = group
        self._door = door

    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusResponse:
        """See the proto."""
        self._door.admit(context)
        seen = self._group.status()
        return pb.StatusResponse(
            node_id=seen.node_id,
            leads=seen.leads,
            standing=standing_message(seen.standing),
            fence=seen.fence,
            primary=seen.primary,
            address=seen.address,
            min_acks=seen.min_acks,
        )

    def Fence(self, request: pb.FenceRequest, context: grpc.ServicerContext) -> pb.FenceResponse:
        """See the proto."""
        self._door.admit(context)
        fenced, seen = self._group.fence(request.epoch, request.primary, request.store_id)
        return pb.FenceResponse(
            fenced=fenced, fence=seen.fence, standing=standing_message(seen.standing)
        )

    def HandOver(
        self, request: pb.HandOverRequest, context: grpc.ServicerContext
    ) -> pb.HandOverResponse:
        """See the proto."""
        self._door.admit(context)
        reason, standing = "unknown step", self._group.status().standing
        try:
            if request.step == pb.HAND_OVER_STEP_PREPARE:
                reason, standing = self._group.prepare(request.node_id, request.epoch)
            elif request.step == pb.HAND_OVER_STEP_COMMIT:
                reason = self._group.commit(request.node_id, request.epoch, request.primary)
                standing = self._group.status().standing
        except (Unavailable, OSError) as error:
            # Not a no: the asking node must ask again.
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.HandOverResponse(
            done=not reason, reason=reason, standing=standing_message(standing)
        )

    def Lead(self, request: pb.LeadRequest, context: grpc.ServicerContext) -> pb.LeadResponse:
        """See the proto."""
        self._door.admit(context)
        return pb.LeadResponse(done=self._group.lead(request.epoch))


def add_group(group: GroupApi, server: grpc.Server, door: Doorkeeper) -> None:
    """Has a server answer for the part that this node plays."""
    pb_grpc.add_GroupServiceServicer_to_server(GroupServicer(group, door), server)
