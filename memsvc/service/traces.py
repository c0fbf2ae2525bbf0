"""OpenTelemetry traces, when the extra ``otel`` is installed and an endpoint is set.

Otherwise every function here does nothing, at the price of one call. Spans carry the call,
its code and the request id; never namespaces, texts or vectors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

_log = logging.getLogger("memsvc.traces")


class Span(Protocol):
    """What a call can say about itself."""

    def set(self, name: str, value: str | int | float | bool) -> None:
        """Adds an attribute."""


class Tracing(Protocol):
    """Makes spans; the same for no tracing at all."""

    def span(self, name: str, headers: Mapping[str, str]) -> Any:
        """A context manager that gives a Span. ``headers`` may hold a ``traceparent``, which
        makes the span a part of the caller's trace."""

    def close(self) -> None:
        """Sends what is left, within a few seconds."""


class _NoSpan:
    def set(self, name: str, value: str | int | float | bool) -> None:
        pass

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class NoTracing:
    """Traces nothing."""

    _span = _NoSpan()

    def span(self, name: str, headers: Mapping[str, str]) -> _NoSpan:
        """A span that forgets everything."""
        return self._span

    def close(self) -> None:
        """Nothing to send."""


class _OtelSpan:
    def __init__(self, span: Any) -> None:
        self._span = span

    def set(self, name: str, value: str | int | float | bool) -> None:
        self._span.set_attribute(name, value)


class OtelTracing:
    """Sends spans in batches to an OTLP/HTTP collector, from a thread of its own."""

    def __init__(self, exporter: Any, version: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"service.name": "memsvc", "service.version": version})
        # A provider of our own, not the global one: an embedding program may have its own.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("memsvc", version)
        self._propagator = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER

    @contextmanager
    def span(self, name: str, headers: Mapping[str, str]) -> Iterator[Span]:
        """A server span; an exception marks it as failed without its text."""
        parent = self._propagator.extract({k: v for k, v in headers.items() if k[:5] == "trace"})
        with self._tracer.start_as_current_span(
            name,
            context=parent,
            kind=self._kind,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield _OtelSpan(span)

    def close(self) -> None:
        """Sends what is left, within a few seconds."""
        self._provider.force_flush(3_000)
        self._provider.shutdown()


def start(endpoint: str, version: str) -> Tracing:
    """Tracing to an OTLP/HTTP endpoint; none when it is empty or the extra is missing."""
    if not endpoint:
        return NoTracing()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        _log.warning(
            "telemetry.otlp_endpoint is set but OpenTelemetry is not installed; no traces. "
            "Install the extra: pip install 'memsvc[otel]'"
        )
        return NoTracing()
    return OtelTracing(OTLPSpanExporter(endpoint=endpoint, timeout=3), version)
