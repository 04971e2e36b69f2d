"""What serves a policy: [policies.<name>.engine]."""

from typing import Annotated, Literal

from msgspec import Struct

from astraflow.config.kinds import doc


class EngineSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.engine]: what serves the policy."""

    kind: Annotated[Literal["cpu", "toy"], doc("cpu: slot decoder on torch; toy: deterministic, for tests")] = "cpu"
    slots: Annotated[int, doc("requests decoded together", ge=1)] = 64
    context_length: Annotated[int, doc("tokens per sequence, prompt included; 0 = the model's own", ge=0)] = 0
    dtype: Annotated[Literal["auto", "bf16", "fp32"], doc("auto: bf16 where the CPU is fast at it")] = "auto"
    replicas: Annotated[int, doc("policy processes that `up` starts", ge=0)] = 1
    prefill_tokens: Annotated[int, doc("prompt tokens prefilled between two decode steps", ge=1)] = 2048
    max_replica_lag: Annotated[int, doc("a replica that is more versions behind takes no requests", ge=0)] = 1
    on_update: Annotated[
        Literal["continue", "recompute"],
        doc("after new weights, running requests keep their KV cache, or it is computed anew before their next token"),
    ] = "continue"
    kv_cache_mib: Annotated[int, doc("memory for keys and values; requests wait for room in it", ge=1)] = 4096
    toy_step_s: Annotated[float, doc("toy engine: seconds per decode step", ge=0)] = 0.0
