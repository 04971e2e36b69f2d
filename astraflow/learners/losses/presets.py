"""Names of published methods for sets of keys of `[policies.<name>.trainer]` and its `loss`. No torch.

A preset fills in what the run file leaves open and wins over nothing. Invariant: every key and value is valid.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What a paper means in our parts."""

    source: str
    loss: Mapping[str, Any]
    trainer: Mapping[str, Any] = field(default_factory=lambda: {"advantage": "grpo"})


_CLIP = {"objective": "clip", "clip_low": 0.2, "clip_high": 0.2, "aggregation": "token-mean"}
_SEVERAL = {"advantage": "grpo", "updates_per_batch": 4}

PRESETS: Mapping[str, Preset] = {
    "grpo": Preset(
        source="arXiv:2402.03300",
        loss=_CLIP | {"aggregation": "sequence-mean", "kl": 0.04, "kl_estimator": "k3", "kl_in": "loss"},
    ),
    "dapo": Preset(
        source="arXiv:2503.14476",
        loss=_CLIP | {"clip_high": 0.28},
        trainer={
            "advantage": "grpo",
            "filters": ["zero-advantage"],
            "overlong_penalty": 1.0,
            "overlong_window": 0.2,
        },
    ),
    "dual-clip": Preset(source="arXiv:1912.09729", loss=_CLIP | {"dual_clip": 3.0}),
    "dr-grpo": Preset(
        source="arXiv:2503.20783", loss=_CLIP | {"aggregation": "constant"}, trainer={"advantage": "dr-grpo"}
    ),
    "rloo": Preset(
        source="arXiv:2402.14740",
        loss={"objective": "ratio", "aggregation": "constant"},
        trainer={"advantage": "rloo"},
    ),
    # The paper takes a KL off the reward; here, as everywhere but in GRPO's preset, whoever wants one sets `kl`.
    "reinforce++": Preset(
        source="arXiv:2501.03262",
        loss=_CLIP | {"normalise": "batch"},
        trainer={"advantage": "reward", "filters": []},
    ),
    "reinforce++-baseline": Preset(
        source="arXiv:2501.03262", loss=_CLIP | {"normalise": "batch"}, trainer={"advantage": "dr-grpo"}
    ),
    "gspo": Preset(
        source="arXiv:2507.18071",
        loss={
            "objective": "clip",
            "ratio": "sequence",
            "clip_low": 3e-4,
            "clip_high": 4e-4,
            "aggregation": "sequence-mean",
            "proximal": "recompute",
        },
        trainer=_SEVERAL,
    ),
    # The paper tunes the upper bound only and doesn't give it; 5 is from arXiv:2510.13786.
    "cispo": Preset(
        source="arXiv:2506.13585",
        loss={"objective": "cispo", "clip_low": 1.0, "clip_high": 4.0, "aggregation": "token-mean"},
    ),
    "sapo": Preset(
        source="arXiv:2511.20347",
        loss={"objective": "sapo", "tau_positive": 1.0, "tau_negative": 1.05, "aggregation": "sequence-mean"},
    ),
    "m2po": Preset(
        source="arXiv:2510.01161",
        loss={"objective": "ratio", "m2_threshold": 0.04, "aggregation": "token-mean"},
    ),
    # The objective is that paper's; masking weights above 5 is how arXiv:2505.24298 uses it for language models.
    "decoupled-ppo": Preset(
        source="arXiv:2110.00641",
        loss=_CLIP
        | {
            "proximal": "recompute",
            "correction": "mask",
            "correction_level": "token",
            "correction_cap": 5.0,
        },
        trainer=_SEVERAL,
    ),
    "ppo": Preset(
        source="arXiv:1707.06347",
        loss=_CLIP | {"normalise": "batch"},
        trainer={"advantage": "gae", "filters": [], "critic": {}},
    ),
}
"""By the names of `[policies.<name>.trainer.loss].preset`."""


def expand(trainer: dict[str, Any], *, max_new_tokens: Any) -> None:
    """Fill the keys of a preset into a run file's trainer table, what a critic brings, and a constant normaliser.

    The table needn't be valid: what isn't understood is left for who checks it.
    """
    loss = trainer.setdefault("loss", {})
    if not isinstance(loss, dict):
        return
    preset = PRESETS.get(loss["preset"]) if isinstance(loss.get("preset"), str) else None
    if preset is not None:
        for table, parts in ((loss, preset.loss), (trainer, preset.trainer)):
            for key, value in parts.items():
                table.setdefault(key, copy(value))
    if "critic" in trainer:
        trainer.setdefault("advantage", "gae")
        trainer.setdefault("filters", [])
        loss.setdefault("normalise", "batch")
    if loss.get("aggregation") == "constant" and not loss.get("aggregation_constant"):
        loss["aggregation_constant"] = max_new_tokens
