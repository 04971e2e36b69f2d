"""What serves a policy: [policies.<name>.engine]."""

from typing import Annotated, Any, Literal

from msgspec import Struct, field

from astraflow.config.kinds import doc


class SglangSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.engine.sglang]: the SGLang server of kind = "sglang"."""

    python: Annotated[str, doc("interpreter of SGLang's venv; default .venv-sglang/bin/python, see `make sglang`")] = ""
    url: Annotated[str, doc("attach to this running server instead of launching one")] = ""
    key_env: Annotated[str, doc("environment variable with the API key of the server at `url`")] = ""
    args: Annotated[dict[str, Any], doc("server arguments by SGLang's names, as { tp_size = 2 }")] = field(
        default_factory=dict
    )
    update: Annotated[
        Literal["auto", "delta", "disk", "tensors"],
        doc("how weights get into the server; auto: the cheapest way that it allows, shown by `status`"),
    ] = "auto"
    verify_every: Annotated[int, doc("swaps between two looks at the server's weights; 0 = never", ge=0)] = 200
    start_within_s: Annotated[float, doc("a server that isn't ready then has failed", gt=0)] = 900.0
    hang_s: Annotated[float, doc("a server that is silent for longer has failed", gt=0)] = 60.0


class EngineSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.engine]: what serves the policy."""

    kind: Annotated[
        Literal["cpu", "sglang", "toy"],
        doc("cpu: slot decoder on torch; sglang: a server in its own venv; toy: deterministic, for tests"),
    ] = "cpu"
    slots: Annotated[int, doc("requests decoded together; sglang: at most, it finds out how many fit", ge=1)] = 64
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
    sglang: Annotated[SglangSection, doc("the server of kind = sglang")] = SglangSection()
    toy_step_s: Annotated[float, doc("toy engine: seconds per decode step", ge=0)] = 0.0
