"""Metrics of the server, named as vLLM's with the prefix ``glassformer:``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .engine import Engine

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


@dataclass(eq=False)
class EngineStats(Collector):
    """Gauges and totals of every engine, read at each scrape."""

    engines: Mapping[str, Engine]

    def collect(self) -> Iterable[Metric]:
        """Yields one sample per model and metric."""
        stats = {id: engine.stats() for id, engine in self.engines.items()}
        for name, (family, number, help_text) in STATS.items():
            metric = family(PREFIX + name, help_text, labels=["model_name"])
            for id, values in stats.items():
                metric.add_metric([id], getattr(values, number))
            yield metric


class Metrics:
    """Counters and histograms of one server; ``text`` is what Prometheus reads."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.collectors = CollectorRegistry()
        self.collectors.register(EngineStats(engines))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, ["model_name", *labels], registry=self.collectors)

        def histogram(name: str, text: str) -> Histogram:
            name = f"{PREFIX}{name}_seconds"
            return Histogram(name, text, ["model_name"], registry=self.collectors, buckets=SECONDS)

        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts that were answered.")
        self.generation_tokens = counter("generation_tokens", "Tokens that were generated.")
        ends = "Requests that were answered to their end, by how they ended."
        self.request_success = counter("request_success", ends, "finished_reason")
        self.first_token = histogram("time_to_first_token", "From the request to its first token.")
        between = "From one token to the next of the same choice."
        self.inter_token = histogram("inter_token_latency", between)
        self.full_time = histogram("e2e_request_latency", "From the request to its end.")
        queued = "From the request to the step in which it is first computed."
        self.queue_time = histogram("request_queue_time", queued)
        counters = (self.prompt_tokens, self.generation_tokens)
        histograms = (self.first_token, self.inter_token, self.full_time, self.queue_time)
        for id in engines:  # what is there from the start shows its first step
            for metric in (*counters, *histograms):
                metric.labels(id)

    def text(self) -> bytes:
        """Everything, in Prometheus's text format."""
        return generate_latest(self.collectors)
