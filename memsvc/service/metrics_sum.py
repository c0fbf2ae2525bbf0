"""One set of metrics for a node of several processes: their counts are added up.

The library's own way for several processes (files that each of them maps) is a switch of the
whole library, set before it is imported, and knows neither registries nor gauges that are read
at a scrape. So each process keeps its own registry and gives the figures away as samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample as LibrarySample

Sample = tuple[str, dict[str, str], float]
"""Name with suffix, labels, value."""

SUMMED_GAUGES: Final = frozenset(
    {
        "memsvc_active_calls",
        "memsvc_connections",
        "memsvc_index_tail_bytes",
        "memsvc_query_cache_bytes",
    }
)
"""Gauges of which each process has a part. Of the others the serving process tells."""


def samples_of(registry: CollectorRegistry) -> list[Sample]:
    """The samples of a registry that add to those of other processes; zeros left out."""
    return [
        (sample.name, dict(sample.labels), sample.value)
        for metric in registry.collect()
        if _adds(metric)
        for sample in metric.samples
        if sample.value and not sample.name.endswith("_created")
    ]


def added(total: dict[tuple[str, str], Sample], samples: Iterable[Sample]) -> None:
    """Adds samples to ``total``, which is keyed so that equal ones meet."""
    for name, labels, value in samples:
        key = (name, repr(sorted(labels.items())))
        before = total.get(key)
        total[key] = (name, labels, value + (before[2] if before else 0.0))


def counts(samples: Iterable[Sample]) -> list[Sample]:
    """Without gauges: what stays true of a process that has ended."""
    return [sample for sample in samples if sample[0] not in SUMMED_GAUGES]


class Summed(Collector):
    """A registry with the samples of other processes added to its own, and without the time
    at which each counter began, which doubles the text and which nothing reads. (The library's
    own switch for that is global, and not ours to turn.)"""

    def __init__(self, registry: CollectorRegistry, others: Iterable[Sample] = ()) -> None:
        self._registry = registry
        self._others: dict[tuple[str, str], Sample] = {}
        added(self._others, others)

    def collect(self) -> Iterator[Metric]:
        """Every metric, added up. What only others have counted comes after one's own."""
        for metric in self._registry.collect():
            own = [s for s in metric.samples if not s.name.endswith("_created")]
            if self._others and _adds(metric):
                own = self._sum(metric, own)
            metric.samples = own
            yield metric

    def _sum(self, metric: Metric, own: list[LibrarySample]) -> list[LibrarySample]:
        found = []
        for sample in own:
            other = self._others.pop((sample.name, repr(sorted(sample.labels.items()))), None)
            found.append(sample._replace(value=sample.value + other[2]) if other else sample)
        suffixes = ("_bucket", "_count", "_sum") if metric.type == "histogram" else ("", "_total")
        names = {metric.name + suffix for suffix in suffixes}
        for key in [key for key in self._others if key[0] in names]:
            name, labels, value = self._others.pop(key)
            found.append(LibrarySample(name, labels, value))
        return found


def _adds(metric: Metric) -> bool:
    return metric.type in ("counter", "histogram") or metric.name in SUMMED_GAUGES
