"""Numbers as people read them. Pure."""

import math
import time
from collections.abc import Mapping

from astraflow.messages.metric_names import (
    WEIGHTS_BYTES,
    WEIGHTS_CHANGED,
    WEIGHTS_LAG_S,
    WEIGHTS_PAUSE_S,
)

_BLOCKS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """42 → "42 s", 252 → "4 min 12 s", 7500 → "2 h 05 min"; under ten seconds with one decimal."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def amount(value: float) -> str:
    """1234 → "1,234", 1234567 → "1.23 M"; a fraction keeps two decimals."""
    if not math.isfinite(value):
        return "?"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.2f} M"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.2f}"


def change(before: float | None, after: float | None, *, once: bool = False) -> str:
    """ "0.13 → 0.97", or only "0.97" of what was measured `once`; "-" where a value is not known."""
    first, last = ("-" if value is None else f"{value:.2f}" for value in (before, after))
    return last if once else f"{first} → {last}"


def counts(numbers: dict[str, int]) -> str:
    """{"ok": 1200, "infra": 2} → "ok 1,200, infra 2", the largest first, without zeros; "none" if nothing is left."""
    rows = sorted(((count, name) for name, count in numbers.items() if count), key=lambda row: (-row[0], row[1]))
    return ", ".join(f"{name} {count:,}" for count, name in rows) or "none"


def failures(count: float) -> str:
    """What a mean leaves out, to stand behind it: " (3 failed)"; "" for none."""
    return f" ({count:,.0f} failed)" if math.isfinite(count) and count > 0 else ""


def weights_sentence(values: Mapping[str, float]) -> str:
    """Metrics of kind weights as "1.3 % changed, 2.49 MB; served 0.8 s after the step, pause 21 ms"; "" without any."""
    parts = []
    if WEIGHTS_BYTES in values:
        changed = values.get(WEIGHTS_CHANGED, 1.0)
        parts.append(f"{'full' if changed == 1 else f'{changed:.1%} changed'}, {values[WEIGHTS_BYTES] / 1e6:.3g} MB")
    if WEIGHTS_PAUSE_S in values:
        lag = values.get(WEIGHTS_LAG_S)
        served = "" if lag is None else f"served {duration(lag)} after the step, "
        parts.append(f"{served}pause {1e3 * values[WEIGHTS_PAUSE_S]:.0f} ms")
    return "; ".join(parts)


def clock(at: float) -> str:
    """Unix seconds → local time of day, 16:03:59."""
    if not 0 <= at < 1e11:
        return "?"
    return time.strftime("%H:%M:%S", time.localtime(at))


def sparkline(values: list[float], *, width: int = 24) -> str:
    """The last `width` values as a row of blocks, from their lowest to their highest; equal values are a low line."""
    shown = [value for value in values if math.isfinite(value)][-width:]
    if not shown:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    return "".join(_BLOCKS[round((value - low) / span * (len(_BLOCKS) - 1)) if span > 0 else 0] for value in shown)
