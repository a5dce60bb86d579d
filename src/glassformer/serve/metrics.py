"""Prometheus metrics, named as vLLM's with the prefix ``glassformer:``."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .registry import Registry

PREFIX = "glassformer:"
SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
)
STATS = {
    "num_requests_running": (GaugeMetricFamily, "running", "Requests that are being computed."),
    "num_requests_waiting": (GaugeMetricFamily, "waiting", "Requests that wait for their turn."),
    "kv_cache_usage_perc": (
        GaugeMetricFamily,
        "used_share",
        "Share of the memory of keys and values in use, 0 to 1.",
    ),
    "num_preemptions": (
        CounterMetricFamily,
        "preempted",
        "Continuations that gave their pages back for others, to be read again.",
    ),
    "spec_decode_num_draft_tokens": (
        CounterMetricFamily,
        "drafted_tokens",
        "Tokens that were guessed ahead.",
    ),
    "spec_decode_num_accepted_tokens": (
        CounterMetricFamily,
        "accepted_tokens",
        "Guessed tokens that were right.",
    ),
}
"""Read from the engines: the kind of metric and the field of their Stats, by name."""
COUNTERS = {
    "prompt_tokens": "Tokens of prompts that were answered.",
    "generation_tokens": "Tokens that were generated.",
    "request_success": "Requests that were answered to their end, by how they ended.",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": "From the request to its first token.",
    "inter_token_latency_seconds": "From one token to the next of the same choice.",
    "e2e_request_latency_seconds": "From the request to its end.",
    "request_queue_time_seconds": "From the request to the step in which it is first computed.",
}


class EngineStats(Collector):
    """Gauges and totals of every engine, read at each scrape."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def collect(self) -> Iterable[Metric]:
        """Yields one sample per model and metric."""
        stats = {id: served.engine.stats() for id, served in self.registry.entries.items()}
        for name, (family, field, help_text) in STATS.items():
            metric = family(PREFIX + name, help_text, labels=["model_name"])
            for id, values in stats.items():
                metric.add_metric([id], getattr(values, field))
            yield metric


class Metrics:
    """Counters and histograms of one server; ``text`` is what Prometheus reads."""

    def __init__(self, registry: Registry) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.collectors = CollectorRegistry()
        self.collectors.register(EngineStats(registry))
        named = {name: ["model_name"] for name in (*COUNTERS, *HISTOGRAMS)}
        named["request_success"] = ["model_name", "finished_reason"]
        self.counters = {
            name: Counter(PREFIX + name, help_text, named[name], registry=self.collectors)
            for name, help_text in COUNTERS.items()
        }
        self.histograms = {
            name: Histogram(
                PREFIX + name, help_text, named[name], registry=self.collectors, buckets=SECONDS
            )
            for name, help_text in HISTOGRAMS.items()
        }
        for id in registry.entries:  # a counter that is there from the start shows its first step
            for name in ("prompt_tokens", "generation_tokens"):
                self.counters[name].labels(id)
            for name in HISTOGRAMS:
                self.histograms[name].labels(id)
        self.load = 0  # answers under way

    def count(self, name: str, model: str, number: float = 1, *more: str) -> None:
        """Add to a counter."""
        self.counters[name].labels(model, *more).inc(number)

    def observe(self, name: str, model: str, seconds: float) -> None:
        """Add to a histogram."""
        self.histograms[name].labels(model).observe(max(seconds, 0.0))

    def text(self) -> bytes:
        """Everything, in Prometheus's text format."""
        return generate_latest(self.collectors)
