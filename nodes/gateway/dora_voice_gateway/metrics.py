"""What the gateway counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)


class Metrics:
    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.connections = Gauge(
            "dora_voice_connections", "Clients that are connected", ["protocol"], registry=registry
        )
        self.waiting = Gauge("dora_voice_waiting", "Clients that wait for a place", ["what"], registry=registry)
        self.sessions = Gauge("dora_voice_sessions", "Sessions that are open in the dataflow", registry=registry)
        self.requests = Counter(
            "dora_voice_requests", "Requests that have ended, by how", ["protocol", "outcome"], registry=registry
        )
        self.tokens = Counter(
            "dora_voice_tokens", "Tokens of the llm: reused, computed, generated", ["kind"], registry=registry
        )
        self.first_output = Histogram(
            "dora_voice_first_output_seconds",
            "From a request, or the end of the user's turn, to the first of its reply",
            ["protocol"],
            buckets=SECONDS,
            registry=registry,
        )
        self.refused = Counter("dora_voice_refused", "Clients that were not let in", registry=registry)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
