"""The metrics of the service, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The metrics of one process."""

    media_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.in_flight = Gauge("postroom_service_in_flight", "Requests in progress.", registry=self._registry)
        self._seconds = Histogram(
            "postroom_service_request_seconds",
            "Time of requests, by route and status.",
            ["route", "status"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._outcomes = Counter(
            "postroom_service_outcomes", "Outcomes of verbs.", ["verb", "status"], registry=self._registry
        )

    def responded(self, route: str, status: int, seconds: float) -> None:
        """Counts a response."""
        self._seconds.labels(route, str(status)).observe(seconds)

    def outcome(self, verb: str, status: str) -> None:
        """Counts the outcome of a verb."""
        self._outcomes.labels(verb, status).inc()

    def text(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
