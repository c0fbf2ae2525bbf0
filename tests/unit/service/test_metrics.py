"""Metrics that would mislead whoever is woken by them."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from memsvc.domain.errors import MemsvcError, invalid
from memsvc.domain.types import (
    Degraded,
    DegradedLevel,
    ForgetAnswer,
    ForgetMode,
    ForgetRequest,
    Metadata,
    Mode,
    Namespace,
    NewMemory,
    Outcome,
    QueryAnswer,
    QueryRequest,
    Status,
    Touch,
    WriteAnswer,
    WriteItem,
    WriteRequest,
    WriteResult,
)
from memsvc.service.metrics import (
    CALL_BUCKETS,
    Metrics,
    Peers,
    RunningMedian,
)
from memsvc.service.readings import NodeReadings
from tests.edges.fakes import make_hit
from tests.edges.harness import vector

ROOT = Path(__file__).parents[3]
NS = Namespace("t", "a")


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def value(metrics: Metrics, sample: str) -> float:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", metrics.exposition().decode(), re.M)
    return float(found.group(1)) if found else 0.0


def everything(metrics: Metrics) -> set[str]:
    """Names of all metrics, as they are exposed."""
    metrics.bind(lambda: NodeReadings(**{f.name: 1 for f in dataclasses.fields(NodeReadings)}))
    return {
        f"{metric.name}_total" if metric.type == "counter" else metric.name
        for metric in metrics.registry.collect()
    }


def test_every_metric_is_documented_and_every_documented_one_exists(metrics: Metrics) -> None:
    text = (ROOT / "docs/reference/metrics.md").read_text()
    documented = set(re.findall(r"^\| `(memsvc_\w+)` \|", text, re.M))
    assert documented == everything(metrics)


def test_every_metric_of_the_alert_rules_exists(metrics: Metrics) -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus-rules.yaml").read_text())
    names = everything(metrics)
    recorded = set()
    alerts = set()
    for group in rules["groups"]:
        for rule in group["rules"]:
            for used in re.findall(r"memsvc_\w+", rule["expr"]):
                base = re.sub(r"_(bucket|sum|count)$", "", used)
                assert used in names or base in names, f"{used} is no metric"
            for used in re.findall(r"memsvc:[\w:]+", rule["expr"]):
                assert used in recorded, f"{used} is not recorded before it is used"
            if "record" in rule:
                recorded.add(rule["record"])
            else:
                alerts.add(rule["alert"])
                assert set(rule["annotations"]) == {"summary", "action"}
    # One alert for each thing an operator must hear of, at the least.
    assert alerts >= {
        "MemsvcWriteSlow",
        "MemsvcRecallSlow",
        "MemsvcEmptyRecalls",
        "MemsvcDimensionMismatch",
        "MemsvcIndexMemoryHigh",
        "MemsvcWriteQueueLong",
        "MemsvcDedupHitsJumped",
        "MemsvcImportanceInflated",
    }


def dashboard() -> list[dict[str, Any]]:
    """The panels that ask for something."""
    read = json.loads((ROOT / "deploy/grafana/memsvc.json").read_text())
    return [panel for panel in read["panels"] if panel["type"] != "row"]


def test_every_metric_of_the_dashboard_exists(metrics: Metrics) -> None:
    names = everything(metrics)
    for panel in dashboard():
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            used = re.findall(r"memsvc_\w+", target["expr"])
            assert used, target["expr"]
            for name in used:
                base = re.sub(r"_(bucket|sum|count)$", "", name)
                assert name in names or base in names, f"{panel['title']}: {name} is no metric"


def test_dashboard_shows_what_alerts_speak_of() -> None:
    asked = " ".join(target["expr"] for panel in dashboard() for target in panel["targets"])
    rules = (ROOT / "deploy/prometheus-rules.yaml").read_text()
    for name in set(re.findall(r"memsvc_\w+", rules)) - {
        "memsvc_snapshot_interval_seconds",  # only to say what is old
        "memsvc_process_start_time_seconds",
    }:
        assert name in asked, name


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    panels = json.loads((ROOT / "deploy/grafana/memsvc.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_rules_and_dashboard_are_promql() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus-rules.yaml").read_text())
    asked = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    asked += [target["expr"] for panel in dashboard() for target in panel["targets"]]
    for expression in asked:
        promql_parser.parse(expression)
    with pytest.raises(ValueError):
        promql_parser.parse("sum by (instance (memsvc_ready)")


def test_alert_limits_are_bounds_of_buckets() -> None:
    assert {0.08, 0.4, 0.8} <= set(CALL_BUCKETS)
    assert sum(1 for bound in CALL_BUCKETS if 0.005 <= bound <= 0.8) >= 14


def recall(metrics: Metrics, *, hits: int, **request: object) -> None:
    lists = ([make_hit(i) for i in range(hits)],)
    metrics.queried(
        QueryRequest(NS, **request),
        QueryAnswer(lists, False, Mode.VECTOR, "p"),
    )


def test_reads_by_id_and_time_are_no_recalls(metrics: Metrics) -> None:
    recall(metrics, hits=0, vectors=(vector(1),))
    recall(metrics, hits=2, text="x")
    recall(metrics, hits=0, ids=("m",))
    recall(metrics, hits=0)
    assert value(metrics, 'memsvc_recalls_total{mode="VECTOR"}') == 2
    assert value(metrics, 'memsvc_empty_recalls_total{mode="VECTOR"}') == 1


def test_each_of_many_vectors_is_a_recall(metrics: Metrics) -> None:
    metrics.queried(
        QueryRequest(NS, (vector(1), vector(2)), many=True),
        QueryAnswer(([make_hit(0)], []), True, Mode.VECTOR, "p"),
    )
    assert value(metrics, 'memsvc_recalls_total{mode="VECTOR"}') == 2
    assert value(metrics, 'memsvc_empty_recalls_total{mode="VECTOR"}') == 1


def write(metrics: Metrics, *items: tuple[WriteItem, Outcome], replayed: bool = False) -> None:
    results = tuple(WriteResult("m", outcome, Status.ACTIVE, 1) for _, outcome in items)
    metrics.wrote(
        WriteRequest(NS, tuple(item for item, _ in items)), WriteAnswer(results, "p", replayed)
    )


def important(importance: float | None) -> NewMemory:
    return NewMemory("x", metadata=Metadata(importance=importance))


def test_repeats_do_not_inflate_what_was_written(metrics: Metrics) -> None:
    write(metrics, (important(0.9), Outcome.CREATED))
    write(metrics, (important(0.9), Outcome.CREATED), replayed=True)
    write(metrics, (important(0.9), Outcome.EXISTS), (Touch("m"), Outcome.TOUCHED))
    assert value(metrics, 'memsvc_write_items_total{outcome="CREATED"}') == 1
    assert value(metrics, 'memsvc_write_items_total{outcome="EXISTS"}') == 1
    assert value(metrics, "memsvc_importance_count") == 1


def test_median_follows_what_is_written(metrics: Metrics) -> None:
    assert math.isnan(value(metrics, "memsvc_importance_median"))
    write(metrics, *[(important(0.3), Outcome.CREATED)] * 5)
    write(metrics, *[(important(None), Outcome.CREATED)] * 2)
    assert value(metrics, "memsvc_importance_median") == 0.3
    write(metrics, *[(important(0.9), Outcome.CREATED)] * 20)
    assert value(metrics, "memsvc_importance_median") == 0.9


def test_inflated_importance_is_warned_of_once(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    write(metrics, *[(important(0.5), Outcome.CREATED)] * 1_000)
    assert not caplog.records
    write(metrics, *[(important(0.9), Outcome.CREATED)] * 4_000)
    assert len(caplog.records) == 1 and "median importance" in caplog.text


def test_median_forgets_what_is_long_ago() -> None:
    median = RunningMedian()
    for _ in range(100_000):
        median.add(0.1)
    for _ in range(15_000):
        median.add(0.8)
    assert median.value() == 0.8


def test_degraded_answers_are_counted_without_free_text(metrics: Metrics) -> None:
    for reason in ("TIMEOUT", "drill by alice", "A" * 100):
        metrics.queried(
            QueryRequest(NS, text="x"),
            QueryAnswer(([],), False, Mode.VECTOR, "p", Degraded(DegradedLevel.TIMEOUT, reason)),
        )
    name = "memsvc_degraded_answers_total"
    assert value(metrics, name + '{level="1",reason="TIMEOUT"}') == 1
    assert value(metrics, name + '{level="1",reason="OTHER"}') == 2


def test_number_of_reasons_is_bounded(metrics: Metrics) -> None:
    for number in range(500):
        metrics.error(MemsvcError("x", reason=f"REASON_{number}"))
    lines = [
        line
        for line in metrics.exposition().decode().splitlines()
        if line.startswith("memsvc_errors_total")
    ]
    assert len(lines) <= 61


def test_dimension_mismatch_is_counted_by_its_reason(metrics: Metrics) -> None:
    error = invalid("vector", "dimension 3, expected 4")
    metrics.error(error)
    assert value(metrics, "memsvc_dimension_mismatches_total") == 0
    error.reason = "DIMENSION_MISMATCH"
    metrics.error(error)
    assert value(metrics, "memsvc_dimension_mismatches_total") == 1


def test_forget_counts_what_changed(metrics: Metrics) -> None:
    request = ForgetRequest(NS, ("m",), mode=ForgetMode.HARD)
    metrics.forgot(request, ForgetAnswer(5, 4, (), False, "p"))
    metrics.forgot(request, ForgetAnswer(5, 4, (), False, "p", replayed=True))
    assert value(metrics, 'memsvc_forgotten_memories_total{mode="HARD"}') == 4


def test_unknown_readings_are_left_out_and_not_zero(metrics: Metrics) -> None:
    metrics.bind(lambda: NodeReadings(write_queue=3))
    text = metrics.exposition().decode()
    assert "memsvc_write_queue_items 3.0" in text
    assert "memsvc_index_budget_bytes " not in text


def test_commits_and_builds_are_counted(metrics: Metrics) -> None:
    metrics.committed(0.004, 20)
    metrics.built(True)
    metrics.built(False)
    assert value(metrics, "memsvc_commit_items_sum") == 20
    assert value(metrics, 'memsvc_builder_jobs_total{result="failed"}') == 1


def test_start_times_of_counters_do_not_double_the_text(metrics: Metrics) -> None:
    metrics.call("Query", "OK", 0.01)
    assert "_created" not in metrics.exposition().decode()


def test_connections_that_fell_silent_are_not_counted() -> None:
    now = [0.0]
    peers = Peers(clock=lambda: now[0])
    peers.saw("a")
    peers.saw("b")
    now[0] = 50.0
    peers.saw("a")
    assert peers.count() == 2
    now[0] = 100.0
    assert peers.count() == 1
