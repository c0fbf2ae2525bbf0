"""Replicas that miss, double or invent something, or say less than they know."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import harness as h
from tests.scenarios import replication as r
from tests.waiting import until

MakeNode = Callable[..., h.Node]


def test_a_replica_has_what_its_primary_had_before_and_gets_what_comes(
    make_node: MakeNode,
) -> None:
    primary = r.make_primary(make_node).start()
    h.fill(primary, range(300))
    replica = r.make_replica(make_node, primary).start()
    assert r.facts(replica) == r.facts(primary)
    more = h.fill(primary, range(300, 400))
    h.forget(primary, more[:30])
    request = pb.WriteItem(update=pb.Update(id=more[40], content="changed text", if_version=1))
    h.write(primary, [request])
    r.level(primary, replica)
    assert r.facts(replica) == r.facts(primary)
    assert h.by_vector(replica, 350).items[0].id == more[50]
    assert h.by_word(replica, "word360x").items[0].id == more[60]
    answer = r.health(replica)
    assert (answer.role, answer.lag_positions) == (pb.ROLE_REPLICA, 0)

    def confirmed() -> bool:
        (following,) = primary.inspect()["replication"]["replicas"]
        return bool(following["lag_positions"] == 0)

    until(confirmed, 10, "the primary to know that the replica is level")
    followed = replica.inspect()["replication"]
    assert (followed["leads"], followed["primary"]) == (False, f"127.0.0.1:{primary.port}")
    assert (primary.stop(), replica.stop()) == (0, 0)
    assert r.digest(primary) == r.digest(replica)
    r.same_records(primary, replica)


def test_a_replica_refuses_changes_and_names_its_primary(make_node: MakeNode) -> None:
    primary = r.make_primary(make_node).start()
    ids = h.fill(primary, range(3))
    replica = r.make_replica(make_node, primary).start()
    until(lambda: r.health(replica).lag_positions == 0, 10, "the replica to be level")
    for call in (
        lambda: h.fill(replica, range(5, 6)),
        lambda: h.forget(replica, ids[:1]),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call()
        code, reason, metadata = r.reason_of(refused.value)
        assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NOT_PRIMARY")
        assert metadata["primary"] == f"127.0.0.1:{primary.port}"
    # Nor does administration add to the log.
    with pytest.raises(grpc.RpcError):
        replica.admin().EraseTenant(h.admin_pb.EraseTenantRequest(tenant="acme"), timeout=10)
    assert r.facts(replica) == r.facts(primary)


def test_a_position_of_the_primary_is_waited_for_or_the_caller_told_to_ask_it(
    make_node: MakeNode,
) -> None:
    primary = r.make_primary(make_node).start()
    h.fill(primary, range(3))
    with r.Proxy(r.feed_address(primary)) as network:
        replica = r.make_replica(make_node, primary, via=network.address).start()
        for number in range(10, 30):
            position = h.write(primary, [h.memory(number)]).position
            found = h.by_vector(replica, number, min_position=position)
            assert h.memory(number).memory.content == _content(replica, found.items[0].id)
        network.cut()
        position = h.write(primary, [h.memory(99)]).position
        with pytest.raises(grpc.RpcError) as late:
            request = pb.QueryRequest(
                namespace=h.namespace(), vector=h.wire(h.vector(99)), min_position=position
            )
            replica.stub().Query(request, timeout=1)
        assert isinstance(late.value, grpc.Call)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def _content(node: h.Node, memory_id: str) -> str:
    request = pb.QueryRequest(
        namespace=h.namespace(), ids=[memory_id], include=pb.Include(content=True)
    )
    return node.stub().Query(request, timeout=10).items[0].content


def test_a_replica_killed_at_any_time_goes_on_from_its_own_files(make_node: MakeNode) -> None:
    primary = r.make_primary(make_node).start()
    h.fill(primary, range(200))
    replica = r.make_replica(make_node, primary).start()
    for number in range(4):
        h.fill(primary, range(1_000 * number + 200, 1_000 * number + 500), batch=20)
        replica.kill()
        h.fill(primary, range(1_000 * number + 500, 1_000 * number + 600), batch=20)
        replica.start()
    r.level(primary, replica)
    assert r.facts(replica) == r.facts(primary)
    assert replica.log_file.read_text().count("copied") == 1
    assert (primary.stop(), replica.stop()) == (0, 0)
    r.same_records(primary, replica)


def test_a_replica_killed_while_it_copies_goes_on_and_is_not_served_half_full(
    make_node: MakeNode,
) -> None:
    primary = r.make_primary(make_node, replication__copy_mib_per_s=8).start()
    h.fill(primary, range(8_000), batch=500)
    primary.maintain(seal_min_rows=1)
    replica = r.make_replica(make_node, primary).start(wait=False)
    incoming = replica.data_dir / "incoming"

    def copied() -> int:
        return sum(p.stat().st_size for p in incoming.rglob("*") if p.is_file())

    for wanted in (1 << 20, 4 << 20):
        until(lambda wanted=wanted: copied() > wanted, 30, "the copy to go on")  # type: ignore[misc]
        replica.kill()
        assert copied() > wanted
        replica.start(wait=False)
    replica.wait_ready()
    assert r.facts(replica) == r.facts(primary)
    assert primary.log_file.read_text().count("copies snapshot") == 3
    names = {line.split()[-1] for line in primary.log_file.read_text().splitlines()
             if "copies snapshot" in line}  # fmt: skip
    assert len(names) == 1, "it went on with the one it had begun"
    assert not incoming.exists()
    # Segments were copied, not built: there is nothing left to do.
    assert replica.inspect("acme", "bot")["partition"]["segments"]


def test_a_store_that_was_written_here_is_never_removed_for_a_copy(make_node: MakeNode) -> None:
    primary = r.make_primary(make_node).start()
    h.fill(primary, range(5))
    own = r.make_replica(make_node, primary, "own", node__role="standalone",
                         replication__primary="")  # fmt: skip
    own.start()
    mine = h.fill(own, range(100, 110))
    own.stop()
    own.configure(node__role="replica", replication__primary=r.feed_address(primary))
    own.start()
    until(lambda: any("not following" in t for t in r.health(own).reasons), 20, "the reason")
    assert set(h.browse(own)) == set(mine)
    own.kill()
    own.start()
    assert set(h.browse(own)) == set(mine)


def test_a_cut_or_frozen_network_is_noticed_and_healed(make_node: MakeNode) -> None:
    primary = r.make_primary(make_node).start()
    h.fill(primary, range(20))
    with r.Proxy(r.feed_address(primary)) as network:
        replica = r.make_replica(make_node, primary, via=network.address).start()
        for number, trouble in enumerate((network.cut, network.freeze)):
            trouble()
            h.fill(primary, range(100 * number + 100, 100 * number + 150))
            until(lambda: r.health(replica).lag_ms > 0, 20, "the lag to be told")
            until(lambda: len(r.health(replica).reasons) == 1, 20, "the reason to be told")
            assert r.health(replica).ready, "reads go on"
            assert len(h.browse(replica)) >= 20
            network.heal()
            r.level(primary, replica)
            until(lambda: r.health(replica).lag_ms == 0, 10, "no lag")
            assert not r.health(replica).reasons
    assert r.facts(replica) == r.facts(primary)


def test_a_primary_that_is_killed_is_followed_again(make_node: MakeNode) -> None:
    primary = r.make_primary(make_node).start()
    replica = r.make_replica(make_node, primary).start()
    for number in range(3):
        h.fill(primary, range(100 * number, 100 * number + 60), batch=10)
        primary.kill()
        assert r.health(replica).ready
        primary.start()
        r.level(primary, replica)
        assert r.facts(replica) == r.facts(primary)


def test_a_replica_of_an_abandoned_history_copies_everything_anew(
    make_node: MakeNode, tmp_path: Path
) -> None:
    """The primary's directory was put back to an earlier state and has written since."""

    primary = r.make_primary(make_node).start()
    h.fill(primary, range(50))
    primary.stop()
    shutil.copytree(primary.data_dir, tmp_path / "earlier")
    primary.start()
    replica = r.make_replica(make_node, primary).start()
    lost = h.fill(primary, range(100, 150))
    r.level(primary, replica)
    primary.stop()
    shutil.rmtree(primary.data_dir)
    shutil.copytree(tmp_path / "earlier", primary.data_dir)
    primary.start()
    for number in range(200, 300):
        h.write(primary, [h.memory(number)])
    # The process ends to begin anew; a supervisor would start it again.
    assert replica.process is not None
    assert replica.process.wait(30) == 75
    replica.start()
    r.level(primary, replica)
    assert r.facts(replica) == r.facts(primary)
    assert not set(lost) & set(h.browse(replica))


def test_a_replica_without_the_secret_gets_nothing(make_node: MakeNode, tmp_path: Path) -> None:
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_text("a secret between nodes\n")
    wrong.write_text("another\n")
    primary = r.make_primary(make_node, replication__token_file=str(secret)).start()
    h.fill(primary, range(10))
    stranger = r.make_replica(make_node, primary, "stranger", replication__token_file=str(wrong))
    stranger.start(wait=False)
    until(lambda: "replication.token_file has to" in stranger.log_tail(), 20, "the refusal")
    assert "127.0.0.1 asks with another secret" in " ".join(r.health(primary).reasons)
    replica = r.make_replica(make_node, primary, replication__token_file=str(secret)).start()
    assert r.facts(replica) == r.facts(primary)
    assert stranger.process is not None and stranger.process.poll() is None
    assert not (stranger.data_dir / "store" / "data.mdb").exists()


def test_a_forgotten_memory_leaves_the_files_of_replicas_too(make_node: MakeNode) -> None:
    settings = {"lifecycle__purge_within_hours": 0.001}
    primary = r.make_primary(make_node, **settings).start()
    replica = r.make_replica(make_node, primary, **settings).start()
    text = "a most particular sentence that must go"
    ids = [h.write(primary, [h.memory(1, text)]).results[0].id]
    h.fill(primary, range(2, 40))
    r.level(primary, replica)
    replica.maintain(seal_min_rows=1)
    h.forget(primary, ids)
    r.level(primary, replica)

    def gone() -> bool:
        needle = text.encode()
        return not any(needle in p.read_bytes() for p in replica.files() if p.is_file())

    until(gone, 60, "the text to leave the replica's files")


def test_recalls_counted_on_a_replica_count_once_everywhere(make_node: MakeNode) -> None:
    primary = r.make_primary(make_node).start()
    ids = h.fill(primary, range(5))
    with r.Proxy(r.feed_address(primary)) as network:
        replica = r.make_replica(make_node, primary, via=network.address).start()

        def recall() -> str:
            found = h.by_vector(replica, 3, rank=pb.Rank(keep=1))
            return found.items[0].id

        def counted(node: h.Node) -> int:
            request = pb.QueryRequest(namespace=h.namespace(), ids=[ids[3]])
            return node.stub().Query(request, timeout=10).items[0].recall_count

        assert [recall() for _ in range(3)] == [ids[3]] * 3
        until(lambda: counted(primary) == 3, 20, "recalls to arrive")
        network.cut()
        for _ in range(4):
            recall()
        time.sleep(6)  # the flush of the buffer
        network.heal()
        until(lambda: counted(primary) == 7, 20, "recalls to arrive after the cut")
        r.level(primary, replica)
        assert counted(replica) == 7
        network.cut()
        network.heal()
        r.level(primary, replica)
        time.sleep(1)
        assert counted(primary) == 7
