"""Encryption of both listeners, with certificates made for the test."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import pytest

from memsvc.http.app import AppOptions, HttpApp
from memsvc.http.server import HttpOptions, HttpServer
from memsvc.rpc.server import RpcOptions, RpcServer
from memsvc.service.certificates import Ending
from memsvc.service.listening import ListenError, TlsFiles
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc
from tests.certificates import Authority, Pair, make_authority, make_pair
from tests.edges.harness import Edge, make_edge, rpc_server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("tls"))


def ask(port: int, ca: Pair, own: Pair | None = None) -> pb.HealthResponse:
    pair = (own.key.read_bytes(), own.cert.read_bytes()) if own else (None, None)
    credentials = grpc.ssl_channel_credentials(ca.cert.read_bytes(), *pair)
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(f"localhost:{port}", credentials, options) as opened:
        stub = memory_service_pb2_grpc.MemoryServiceStub(opened)
        return stub.Health(pb.HealthRequest(), timeout=3)


def unavailable(call: Callable[[], object]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    )


def test_encrypted_server_does_not_speak_plainly(authority: Authority) -> None:
    with rpc_server(make_edge(), tls=authority.files(mutual=False)) as server:
        assert ask(server.port, authority.ca).ready
        with grpc.insecure_channel(f"localhost:{server.port}") as opened:
            stub = memory_service_pb2_grpc.MemoryServiceStub(opened)
            unavailable(lambda: stub.Health(pb.HealthRequest(), timeout=3))


def test_client_without_a_certificate_of_the_authority_is_turned_away(
    authority: Authority,
) -> None:
    with rpc_server(make_edge(), tls=authority.files(mutual=True)) as server:
        assert ask(server.port, authority.ca, authority.client).ready
        unavailable(lambda: ask(server.port, authority.ca))
        unavailable(lambda: ask(server.port, authority.ca, authority.stranger))


def serve(edge: Edge, files: TlsFiles) -> HttpServer:
    app = HttpApp(edge.gate, edge.pool, AppOptions())
    return HttpServer(app.app, HttpOptions(port=0, tls=files))


@pytest.mark.parametrize("mutual", [False, True])
def test_http_is_encrypted_by_the_same_files(authority: Authority, mutual: bool) -> None:
    server = serve(make_edge(), authority.files(mutual=mutual))
    server.start()
    url = f"https://127.0.0.1:{server.port}/healthz"
    try:
        trusting = ssl.create_default_context(cafile=str(authority.ca.cert))
        if mutual:
            with pytest.raises(httpx.HTTPError):
                httpx.get(url, verify=trusting, timeout=3)
            trusting.load_cert_chain(authority.client.cert, authority.client.key)
        assert httpx.get(url, verify=trusting, timeout=3).json() == {"alive": True}
        with pytest.raises(httpx.HTTPError):
            httpx.get(url.replace("https", "http"), timeout=3)
    finally:
        server.stop(1)


def test_certificate_that_cannot_be_used_names_the_setting(
    authority: Authority, tmp_path: Path
) -> None:
    edge = make_edge()
    missing = TlsFiles(str(tmp_path / "none.pem"), str(authority.server.key))
    rpc = RpcServer(edge.gate, edge.pool, RpcOptions(listen="127.0.0.1:0", tls=missing))
    with pytest.raises(ListenError, match=r"server\.tls\.cert_file"):
        rpc.start()
    with pytest.raises(ListenError, match=r"server\.tls"):
        serve(edge, missing).start()
    mixed = TlsFiles(str(authority.server.cert), str(authority.client.key))
    rpc = RpcServer(edge.gate, edge.pool, RpcOptions(listen="127.0.0.1:0", tls=mixed))
    with pytest.raises(ListenError, match=r"server\.tls\.key_file"):
        rpc.start()
    with pytest.raises(ListenError, match=r"server\.tls"):
        serve(edge, mixed).start()


def shown(port: int) -> bytes:
    """The certificate that a listener shows, whatever it is."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=10).strip().encode()


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    pair, later = make_pair(tmp_path, "now", days=1), make_pair(tmp_path, "later", days=90)
    files = TlsFiles(str(pair.cert), str(pair.key))
    http = serve(make_edge(), files)
    http.start()
    try:
        with rpc_server(make_edge(), tls=files) as rpc:
            ports, first = (rpc.port, http.port), pair.cert.read_bytes().strip()
            assert [shown(port) for port in ports] == [first, first]
            ending = Ending(files)
            before = ending.until()
            # Between the writing of the one file and of the other nothing changes.
            later.cert.rename(pair.cert)
            assert [shown(port) for port in ports] == [first, first]
            assert ending.until() == before
            later.key.rename(pair.key)
            second = pair.cert.read_bytes().strip()
            assert [shown(port) for port in ports] == [second, second]
            assert ending.until() > before
            assert ask(rpc.port, pair).ready
            # What cannot be used, or is not there, ends nothing.
            pair.cert.write_text("none")
            pair.key.unlink()
            assert [shown(port) for port in ports] == [second, second]
    finally:
        http.stop(1)
