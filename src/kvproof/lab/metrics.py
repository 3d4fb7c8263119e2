"""What the server counts, in Prometheus' text form under vLLM 0.32's names, labels and buckets."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter

from kvproof.lab.batching import Batcher, Request

# vllm/v1/metrics/buckets.py of 0.32: upper edges in seconds.
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0,
                7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_BETWEEN_TOKENS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0,
                   7.5, 10.0, 20.0, 40.0, 80.0)  # fmt: skip
_WHOLE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
          240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip


def _quoted(text: str) -> str:
    """A label's value: a model's name may hold any character."""
    for plain, told in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n")):
        text = text.replace(plain, told)
    return text


class Histogram:
    """Counts of observed seconds by bucket, and their sum."""

    def __init__(self, name: str, edges: tuple[float, ...]) -> None:
        self.name, self.edges = name, edges
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(self.edges, seconds)] += 1
        self._sum += seconds

    def lines(self, labels: str) -> list[str]:
        """Cumulative buckets, sum and count."""
        out, total = [f"# TYPE vllm:{self.name} histogram"], 0
        for edge, count in zip((*map(str, self.edges), "+Inf"), self._counts, strict=True):
            total += count
            out.append(f'vllm:{self.name}_bucket{{{labels},le="{edge}"}} {total}')
        return [*out, f"vllm:{self.name}_sum{{{labels}}} {self._sum}",
                f"vllm:{self.name}_count{{{labels}}} {total}"]  # fmt: skip


class Metrics:
    """The batcher's counters, and the times of requests that pass through the engine."""

    def __init__(self, batcher: Batcher, model: str) -> None:
        self.batcher = batcher
        self._labels = f'model_name="{_quoted(model)}",engine="0"'
        self.first = Histogram("time_to_first_token_seconds", _FIRST_TOKEN)
        self.between = Histogram("inter_token_latency_seconds", _BETWEEN_TOKENS)
        self.each = Histogram("request_time_per_output_token_seconds", _BETWEEN_TOKENS)
        self.whole = Histogram("e2e_request_latency_seconds", _WHOLE)
        self._last: dict[Request, float] = {}
        self._ends: Counter[str] = Counter()

    def token(self, request: Request) -> None:
        """A request has just got a token."""
        now = time.perf_counter()
        before = self._last.get(request)
        if before is None:
            self.first.observe(now - request.arrived)
        else:
            self.between.observe(now - before)
        self._last[request] = now

    def end(self, request: Request, reason: str) -> None:
        """A request is over: `stop`, `length` or `abort`."""
        last = self._last.pop(request, None)
        self._ends[reason] += 1
        if last is not None and request.first_token is not None and len(request.tokens) > 1:
            self.each.observe((last - request.first_token) / (len(request.tokens) - 1))
        self.whole.observe(time.perf_counter() - request.arrived)

    def text(self) -> str:
        """All metrics in Prometheus' text form."""
        batcher, counters = self.batcher, self.batcher.counters
        rows: list[tuple[str, str, float]] = [
            ("num_requests_running", "gauge", len(batcher.running)),
            ("num_requests_waiting", "gauge", len(batcher.waiting)),
            ("kv_cache_usage_perc", "gauge", batcher.pool.usage),
            ("num_preemptions_total", "counter", counters.preemptions),
            ("prompt_tokens_total", "counter", counters.prefill_tokens + counters.hit_tokens),
            ("prompt_tokens_cached_total", "counter", counters.hit_tokens),
            ("generation_tokens_total", "counter", counters.decode_tokens),
            ("prefix_cache_queries_total", "counter", counters.queried_tokens),
            ("prefix_cache_hits_total", "counter", counters.hit_tokens),
        ]
        lines = [self._config()]
        for name, kind, value in rows:
            lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{self._labels}}} {value}"]
        lines.append("# TYPE vllm:request_success_total counter")
        for reason in ("stop", "length", "abort"):
            labels = f'{self._labels},finished_reason="{reason}"'
            lines.append(f"vllm:request_success_total{{{labels}}} {self._ends[reason]}")
        for histogram in (self.first, self.between, self.each, self.whole):
            lines += histogram.lines(self._labels)
        return "\n".join(lines) + "\n"

    def _config(self) -> str:
        pool = self.batcher.pool
        types = pool.types
        dtype = types.k.name if types.k == types.v else f"{types.k.name}/{types.v.name}"
        sizes = (
            f'block_size="{pool.block_size}",cache_dtype="{dtype}",'
            f'kv_cache_memory_bytes="{pool.allocated_bytes}",'
            f'num_gpu_blocks="{pool.groups[0].books.total}"'
        )
        name = "vllm:cache_config_info"
        return f"# TYPE {name} gauge\n{name}{{{sizes}}} 1"
