"""A model that is served and perhaps trained: [policies.<name>], how it samples and how its weights travel."""

from typing import Annotated, Literal

from msgspec import Struct

from astraflow.config.engine import EngineSection
from astraflow.config.kinds import doc
from astraflow.config.trainer import TrainerSection

SHOWN_TOKENS = ("<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>")


class SamplingSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.sampling]: how tokens are sampled."""

    max_new_tokens: Annotated[int, doc("tokens per completion, at most", ge=1)] = 256
    temperature: Annotated[float, doc("0 is greedy", ge=0)] = 1.0
    top_k: Annotated[int, doc("0 is off", ge=0)] = 0
    top_p: Annotated[float, doc("1 is off", gt=0, le=1)] = 1.0


class WeightsSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.weights]: how full versions travel; deltas, which are small, always go over the bus."""

    full_transport: Annotated[
        Literal["nats", "file", "http"],
        doc("nats: over the bus; file: through a shared folder; http: from the trainer's machine"),
    ] = "nats"
    full_on_nats: Annotated[
        bool, doc("file: keep fulls on the bus too, for machines that don't have the folder; http always does")
    ] = True
    folder: Annotated[
        str, doc("file: absolute path of the shared folder; http: what is served is kept there, empty = run folder")
    ] = ""
    listen: Annotated[
        str, doc("http: HOST:PORT of the trainer's server, port 0 = any free one; TLS unless it is a loopback address")
    ] = "127.0.0.1:0"
    advertise: Annotated[str, doc("http: name or address of that machine for readers; empty = the host of listen")] = ""


class PolicySection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>]: a model that is served, and trained if it has a trainer table."""

    model: Annotated[
        str, doc("a folder, or smollm2-135m-instruct, tiny-reverse, tiny-add, toy, or org/name on the Hugging Face hub")
    ]
    engine: EngineSection = EngineSection()
    sampling: SamplingSection = SamplingSection()
    shown_tokens: Annotated[
        tuple[str, ...],
        doc("special tokens that stay in a reply's text, so that graders see them; other special ones are left out"),
    ] = SHOWN_TOKENS
    trainer: Annotated[TrainerSection | None, doc("absent: the policy is frozen")] = None
    weights: WeightsSection = WeightsSection()
