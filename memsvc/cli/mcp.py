"""memsvc mcp: memory as tools of the Model Context Protocol."""

from __future__ import annotations

import importlib.util
import threading

import click

from memsvc.cli import options
from memsvc.cli.failures import Failure, Misused
from memsvc.client import Embedder, EndpointEmbedder, LocalEmbedder, RecallSettings, Timeouts
from memsvc.client.calls import MemoryCalls
from memsvc.client.embedders import EmbedderMissing
from memsvc.client.routed import RoutedClient
from memsvc.domain.limits import MAX_DIMENSION
from memsvc.domain.types import Namespace

DEFAULT_HTTP = "127.0.0.1:8850"


@click.command()
@click.option(
    "-n",
    "--namespace",
    type=options.namespace_value,
    envvar="MEMSVC_NAMESPACE",
    show_envvar=True,
    required=True,
    metavar="TENANT/AGENT[/SESSION]",
    help="Whose memory. End users who must not see each other need a server each.",
)
@click.option(
    "--http",
    "http_listen",
    is_flag=False,
    flag_value=DEFAULT_HTTP,
    metavar="HOST:PORT",
    help=f"Serve streamable HTTP there, instead of stdio; {DEFAULT_HTTP} when no address is given.",
)
@click.option(
    "--http-token",
    envvar="MEMSVC_MCP_TOKEN",
    default="",
    show_envvar=True,
    help="Token that HTTP clients must send as a bearer token; needed for any address that is not "
    "loopback. At least 16 characters; better in the environment.",
)
@click.option("--http-cert-file", default="", help="Certificate of --http, PEM: serves HTTPS.")
@click.option("--http-key-file", default="", help="Private key of --http-cert-file, PEM.")
@click.option(
    "--embedder",
    "embedder_choice",
    type=click.Choice(["auto", "local", "none"]),
    envvar="MEMSVC_EMBEDDER",
    default="auto",
    show_default=True,
    show_envvar=True,
    help="Who turns text into vectors. auto: the local embedder, if it is installed and is the "
    "store's model; local: it or an error; none: nobody, words only.",
)
@click.option(
    "--endpoint",
    envvar="MEMSVC_ENDPOINT",
    default="",
    show_envvar=True,
    metavar="URL",
    help="OpenAI-compatible endpoint of another model, without the final /embeddings; takes the "
    "place of --embedder. A key is taken from OPENAI_API_KEY.",
)
@click.option(
    "--model",
    envvar="MEMSVC_MODEL",
    default="",
    show_envvar=True,
    help="Model of --endpoint, as the endpoint calls it.",
)
@click.option(
    "--dimension",
    type=click.IntRange(1, MAX_DIMENSION),
    envvar="MEMSVC_DIMENSION",
    show_envvar=True,
    help="Numbers in a vector of --model.",
)
@click.option(
    "--embedding", default="", metavar="NAME", help="Name of --model in the store, if another."
)
@click.option(
    "--min-score",
    type=options.FiniteRange(-1, 1),
    envvar="MEMSVC_MIN_SCORE",
    show_envvar=True,
    help="Least similarity of what is found by meaning; see `memsvc calibrate`. Default: what the "
    "embedder states.",
)
@options.connection
def mcp(
    target: options.Target,
    namespace: Namespace,
    http_listen: str | None,
    http_token: str,
    http_cert_file: str,
    http_key_file: str,
    embedder_choice: str,
    endpoint: str,
    model: str,
    dimension: int | None,
    embedding: str,
    min_score: float | None,
) -> None:
    """Give a model this memory as tools (Model Context Protocol).

    Speaks over stdio, as a client that starts it expects, or over streamable HTTP. Tools:
    remember, recall, get_full_text, forget, status. Several addresses, divided by commas, are a
    primary and its replicas. The service need not be there yet.

    \b
    Examples:
      memsvc mcp -n acme/assistant
      memsvc mcp -n acme/assistant --http
      MEMSVC_MCP_TOKEN=... memsvc mcp -n acme/assistant --http 0.0.0.0:8850
    """
    if importlib.util.find_spec("mcp") is None:
        raise Misused("the MCP server needs its SDK", hint="pip install 'memsvc[mcp]'")
    from memsvc.integrations.mcp import Backend, make_server
    from memsvc.integrations.mcp.http import Listen, check_token, serve_http

    if bool(http_cert_file) != bool(http_key_file):
        raise click.UsageError("--http-cert-file and --http-key-file go together")
    listen = None
    if http_listen is not None:
        try:
            listen = Listen(http_listen, tls=bool(http_cert_file))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--http") from None
        try:
            check_token(listen, http_token)
        except ValueError as error:
            raise Misused(
                str(error), hint="give a token in MEMSVC_MCP_TOKEN, or listen on 127.0.0.1"
            ) from None
    note = ""
    embedder: Embedder | None
    if endpoint:
        embedder = _at_endpoint(endpoint, model, dimension, embedding)
    elif model or dimension or embedding:
        raise click.UsageError("--model, --dimension and --embedding go with --endpoint")
    else:
        embedder, note = _embedder(embedder_choice)
    backend = Backend(
        _client(target),
        namespace,
        embedder,
        strict=bool(endpoint) or embedder_choice == "local",
        note=note,
        settings=RecallSettings(min_score=min_score),
    )
    try:
        server = make_server(backend)
        if listen is None:
            server.run("stdio")
            return
        click.echo(f"MCP at {listen} for {namespace.tenant}/{namespace.agent}", err=True)
        serve_http(server, listen, http_token, cert_file=http_cert_file, key_file=http_key_file)
    except OSError as error:
        raise Failure(f"--http: {error}") from None
    finally:
        backend.close()


def _client(target: options.Target) -> MemoryCalls:
    addresses = [one.strip() for one in target.address.split(",") if one.strip()]
    if len(addresses) < 2:
        return target.connect()
    usual = Timeouts()
    seconds = target.timeout
    return RoutedClient(
        addresses,
        target.token,
        tls=target.tls,
        timeouts=Timeouts(read=seconds or usual.read, write=seconds or usual.write),
        token_header=target.token_header,
    )


def _at_endpoint(url: str, model: str, dimension: int | None, name: str) -> Embedder:
    if not model or dimension is None:
        raise click.UsageError("--endpoint needs --model and --dimension")
    try:
        # Within the time of a call: recall gives it half of a read, and retries would outlast it.
        return EndpointEmbedder(model, dimension, base_url=url, name=name, read_s=10.0, retries=1)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _embedder(choice: str) -> tuple[Embedder | None, str]:
    """The embedder, and why there is none."""
    if choice == "none":
        return None, "words only, as --embedder none asks"
    try:
        local = LocalEmbedder()
    except EmbedderMissing as error:
        if choice == "local":
            raise
        return None, str(error)
    # It loads at its first use, which the first recall would otherwise pay for, or give up on.
    threading.Thread(target=local.embed, args=(["first"],), daemon=True).start()
    return local, ""
