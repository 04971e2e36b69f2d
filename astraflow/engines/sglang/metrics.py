"""What a server's Prometheus page says, as far as admission and people need it. Pure."""

from collections import defaultdict

from astraflow.engines.sglang.admission import Pressure

_SUMMED = {  # over data-parallel ranks; tensor-parallel ranks report once
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "queued",
    "sglang:num_retracted_requests_total": "retracted",
    "sglang:gen_throughput": "tokens_per_s",
}
_LARGEST = {"sglang:token_usage": "kv_usage", "sglang:cache_hit_rate": "cache_hit_rate"}


def read_pressure(page: str) -> Pressure:
    """From the text of /metrics. What it doesn't have is 0; lines that aren't understood are skipped."""
    values: defaultdict[str, float] = defaultdict(float)
    for line in page.splitlines():
        name, brace, rest = line.partition("{")
        if not brace:
            name, _, rest = line.partition(" ")
        if name not in _SUMMED and name not in _LARGEST:
            continue
        try:
            value = float(rest.rpartition("}")[2].split()[0])
        except (ValueError, IndexError):
            continue
        if name in _SUMMED:
            values[_SUMMED[name]] += value
        else:
            values[_LARGEST[name]] = max(values[_LARGEST[name]], value)
    return Pressure(**values)
