"""Services between nodes that fail in a way nobody foresaw tell nothing of their insides."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from memsvc.replication.v1 import group_service_pb2 as pb
from memsvc.replication.v1 import group_service_pb2_grpc as group_rpc
from memsvc.replication.v1 import replication_service_pb2 as feed_pb
from memsvc.replication.v1 import replication_service_pb2_grpc as feed_rpc
from memsvc.rpc.group import GroupServicer
from memsvc.rpc.incidents import Incidents
from memsvc.rpc.replication import Doorkeeper

SECRET = "/var/lib/memsvc/ROLE"


class Broken:
    """A part in a group whose disk fails whatever is asked."""

    def __getattr__(self, _name: str) -> Any:
        def fail(*_args: object) -> object:
            raise RuntimeError(f"cannot write {SECRET}")

        return fail


class BrokenFeed(feed_rpc.ReplicationServiceServicer):
    def Copy(self, request: Any, context: Any) -> Iterator[feed_pb.CopyResponse]:
        yield feed_pb.CopyResponse(path="first")
        raise OSError(f"cannot read {SECRET}")

    def Follow(self, request_iterator: Any, context: Any) -> Iterator[feed_pb.FollowResponse]:
        context.abort(grpc.StatusCode.OUT_OF_RANGE, "not kept")
        yield feed_pb.FollowResponse()


@pytest.fixture
def channel() -> Iterator[grpc.Channel]:
    server = grpc.server(ThreadPoolExecutor(4), interceptors=[Incidents()])
    group_rpc.add_GroupServiceServicer_to_server(
        GroupServicer(Broken(), Doorkeeper("", print)), server
    )
    feed_rpc.add_ReplicationServiceServicer_to_server(BrokenFeed(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    server.stop(0).wait()


def test_a_failure_between_nodes_is_an_incident_and_not_a_message(
    channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    group, feed = group_rpc.GroupServiceStub(channel), feed_rpc.ReplicationServiceStub(channel)
    calls = (
        lambda: group.Status(pb.StatusRequest(), timeout=10),
        lambda: group.Fence(pb.FenceRequest(), timeout=10),
        lambda: group.Lead(pb.LeadRequest(), timeout=10),
        lambda: list(feed.Copy(feed_pb.CopyRequest(), timeout=10)),
    )
    for call in calls:
        caplog.clear()
        with caplog.at_level(logging.ERROR), pytest.raises(grpc.RpcError) as failed:
            call()
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert "incident" in failed.value.details()
        assert SECRET not in failed.value.details()
        assert SECRET in caplog.text, "the log has it"


def test_a_refusal_between_nodes_stays_what_it_is(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        list(feed_rpc.ReplicationServiceStub(channel).Follow(iter(()), timeout=10))
    assert refused.value.code() is grpc.StatusCode.OUT_OF_RANGE
    assert refused.value.details() == "not kept"
