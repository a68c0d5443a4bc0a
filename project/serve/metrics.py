"""Figures of a running server in Prometheus' text format.

The format is at https://prometheus.io/docs/instrumenting/exposition_formats/. Five figures do not
need its client library.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "lightning_serve"


class Histogram:
    """Counts below bounds.

    Args:
        name: Of the metric.
        text: What it measures.
        bounds: Upper bounds, ascending, inclusive.
    """

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name, self.text, self.bounds = f"{PREFIX}_{name}", text, bounds
        self.counts, self.sum = [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self) -> Iterator[str]:
        """Yield it as text."""
        yield from _head(self.name, "histogram", self.text)
        total = 0
        for bound, count in zip([*self.bounds, "+Inf"], self.counts, strict=True):
            total += count
            yield f'{self.name}_bucket{{le="{bound}"}} {total}'
        yield f"{self.name}_sum {self.sum:.6f}"
        yield f"{self.name}_count {total}"


class Metrics:
    """What a server counts."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by path and status
        self.in_flight = 0
        self.restarts = 0
        bounds = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
        self.latency = Histogram(
            "predict_seconds", "Time from a request's head to its answer.", bounds
        )
        sizes = [2**power for power in range(11)]
        self.batch = Histogram("batch_images", "Images that the model got at once.", sizes)

    def text(self, queued: int, replicas: int) -> str:
        """Return all figures.

        Args:
            queued: Images that wait for an answer.
            replicas: Those that are ready.
        """
        lines = [*_head(f"{PREFIX}_requests_total", "counter", "Answered requests.")]
        for (path, status), count in sorted(self.requests.items()):
            lines.append(f'{PREFIX}_requests_total{{path="{path}",status="{status}"}} {count}')
        lines += [*self.latency.lines(), *self.batch.lines()]
        for name, kind, text, value in (
            ("in_flight", "gauge", "Requests that are being answered.", self.in_flight),
            ("queue_images", "gauge", "Images that wait for an answer.", queued),
            ("replicas", "gauge", "Copies of the model that are ready.", replicas),
            ("replica_restarts_total", "counter", "Copies that had died.", self.restarts),
        ):
            lines += [*_head(f"{PREFIX}_{name}", kind, text), f"{PREFIX}_{name} {value}"]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
