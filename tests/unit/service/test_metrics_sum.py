"""Metrics of several processes that would count twice, fall, or go missing."""

from __future__ import annotations

import json
import re

from memsvc.domain.errors import invalid
from memsvc.service.metrics import Metrics
from memsvc.service.metrics_sum import Sample, added, counts


def sent(metrics: Metrics) -> list[Sample]:
    """What arrives of the samples of another process."""
    return [(n, labels, v) for n, labels, v in json.loads(json.dumps(metrics.samples()))]


def value(text: str, sample: str) -> float | None:
    found = re.findall(rf"^{re.escape(sample)} (\S+)$", text, re.M)
    assert len(found) <= 1, f"{sample} stands there twice"
    return float(found[0]) if found else None


def test_counts_add_up_and_what_only_others_counted_is_there() -> None:
    own, other = Metrics(), Metrics()
    own.call("Write", "OK", 0.004)
    own.call("Query", "OK", 0.004)
    other.call("Query", "OK", 0.2)
    other.call("Query", "NOT_FOUND", 0.2)
    other.error(invalid("a", "b"))
    other.active_calls.inc()
    own.others = lambda: sent(other)
    text = own.exposition().decode()
    name = "memsvc_call_duration_seconds"
    assert value(text, f'{name}_count{{call="Write",code="OK"}}') == 1
    assert value(text, f'{name}_count{{call="Query",code="OK"}}') == 2
    assert value(text, f'{name}_count{{call="Query",code="NOT_FOUND"}}') == 1
    assert value(text, f'{name}_bucket{{call="Query",code="OK",le="0.005"}}') == 1
    assert value(text, f'{name}_bucket{{call="Query",code="OK",le="+Inf"}}') == 2
    assert value(text, "memsvc_active_calls") == 1
    assert 'memsvc_errors_total{code="INVALID_ARGUMENT"' in text
    # A gauge that only the serving process tells.
    assert value(text, "memsvc_memory_limit_bytes") == value(
        Metrics().exposition().decode(), "memsvc_memory_limit_bytes"
    )
    assert own.exposition().decode().count("# TYPE") == Metrics().exposition().decode().count(
        "# TYPE"
    )


def test_counts_of_a_process_that_ended_stay_and_its_gauges_do_not() -> None:
    gone = Metrics()
    gone.call("Query", "OK", 0.2)
    gone.active_calls.inc()
    total: dict[tuple[str, str], Sample] = {}
    added(total, counts(sent(gone)))
    added(total, counts(sent(gone)))
    own = Metrics()
    own.others = lambda: list(total.values())
    text = own.exposition().decode()
    assert value(text, 'memsvc_call_duration_seconds_count{call="Query",code="OK"}') == 2
    assert value(text, "memsvc_active_calls") == 0
