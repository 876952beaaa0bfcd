"""CPU per metrics page: the reader of ``engines/prometheus.py`` beside prometheus_client's parser.

    python bench/metrics_page.py          needs prometheus_client for the second figure

The page is one of vLLM's with two ranks: three gauges, five counters and 14 histograms.
"""

import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from holdfast.engines.vllm import DIALECT

_LABELS: Final = 'model_name="meta-llama/Llama-3.1-8B-Instruct"'
_GAUGES: Final = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_COUNTERS: Final = (
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "generation_tokens_total",
    "prompt_tokens_total",
    "num_preemptions_total",
)
_BOUNDS: Final = (*(0.001 * 2**power for power in range(20)), "+Inf")


def page(ranks: int = 2, histograms: int = 14) -> str:
    """A metrics page as long as those of a real engine."""
    lines = []
    for name in (*_GAUGES, *_COUNTERS):
        lines.append(f"# HELP vllm:{name} About it.")
        lines += [f'vllm:{name}{{engine="{rank}",{_LABELS}}} 0.25' for rank in range(ranks)]
    for number in range(histograms):
        name = f"vllm:request_duration_{number}_seconds"
        lines.append(f"# HELP {name} About it.\n# TYPE {name} histogram")
        for rank in range(ranks):
            at = f'engine="{rank}",{_LABELS}'
            lines += [f'{name}_bucket{{le="{bound}",{at}}} 123.0' for bound in _BOUNDS]
            lines += [f"{name}_count{{{at}}} 123.0", f"{name}_sum{{{at}}} 12.5"]
    return "\n".join(lines) + "\n"


def cpu_us(call: Callable[[], object], times: int) -> float:
    """The CPU time of one call in microseconds, the best of five rounds."""
    rounds = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(times):
            call()
        rounds.append((time.process_time() - began) / times)
    return min(rounds) * 1e6


def main() -> None:
    """Print both figures."""
    text = page()
    print(f"{len(text):,} characters, {text.count(chr(10))} lines")
    print(f"engines/prometheus.py  {cpu_us(lambda: DIALECT.read_load(text), 200):8,.0f} µs a page")
    if find_spec("prometheus_client") is None:
        print("prometheus_client is not installed")
        return
    parse = import_module("prometheus_client.parser").text_string_to_metric_families
    print(f"prometheus_client      {cpu_us(lambda: list(parse(text)), 10):8,.0f} µs a page")


if __name__ == "__main__":
    main()
