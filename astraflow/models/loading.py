"""A model folder as transformers loads it, or not at all: the one way from a folder to weights.

What transformers only warns of is refused here: tensors that are missing, which it makes up from random numbers, other
ones in each process, and tensors that the model has no place for. Not here: what a learner or an engine makes of it.
Nothing ever touches a model hub or runs code of a folder.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from astraflow.errors import ConfigError
from astraflow.messages import Probe
from astraflow.models.derived import derived_config
from astraflow.models.export import described, export_tensors
from astraflow.models.facts import TOY, read_facts
from astraflow.models.folder import check_folder, read_files, read_model
from astraflow.models.layout import checkpoint_layout
from astraflow.models.probe import probe_row, scored
from astraflow.weights.codec.tensors import HostTensor

NAMED = 5  # tensors in a message


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How ranks, whose process group is there already, load a model: each reads and holds its own pieces, in fp32."""

    data: int  # ranks that a copy of the model is cut among
    replicate: int = 1  # such copies
    dtype: torch.dtype  # that it computes in: pieces are cast as they are gathered


def load_causal(folder: Path, sharding: Sharding | None = None) -> Any:
    """transformers' model of a folder, in its checkpoint's dtype, in eval mode. Raises ConfigError.

    With `sharding` its parameters are fp32 and this rank's pieces; all ranks call this together.
    """
    check_folder(folder)
    config = derived_config(read_facts(read_files(folder)).config)
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ConfigError(f"model folder {folder}: a {config.model_type} model is no causal language model")
    transformers.utils.logging.disable_progress_bar()
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype="auto" if sharding is None else torch.float32,
            **_distributed(sharding),
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError, SafetensorError) as exc:
        raise ConfigError(f"{folder} can't be loaded as a causal language model: {exc}") from exc
    _check_complete(folder, model, info)
    model.eval()
    check_runs(model)
    return model


def _distributed(sharding: Sharding | None) -> dict[str, Any]:
    if sharding is None:
        return {}
    from transformers.distributed import DistributedConfig

    mixed = sharding.dtype == torch.bfloat16  # gradients are added up in fp32 either way
    config = DistributedConfig(
        fsdp_size=sharding.data, dp_replicate_size=sharding.replicate, fsdp_mixed_precision=mixed
    )
    return {"distributed_config": config}


def check_runs(model: Any) -> None:
    """Raises ConfigError for a model whose config transformers takes, and then can't compute with."""
    try:
        with torch.no_grad():  # what a model keeps of a pass, it may need with gradients
            model(input_ids=torch.zeros(1, 2, dtype=torch.int64), use_cache=False)
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError) as exc:
        raise ConfigError(f"transformers can't compute with this {model.config.model_type} model: {exc}") from exc


def load_frozen(folder: Path) -> tuple[dict[str, bytes], dict[str, HostTensor], Probe | None]:
    """Like `load_tensors`, and the version's probe by transformers itself: no learner ever computes with it."""
    files, tensors, model = _exported(folder)
    if model is None:
        return files, tensors, None
    facts = read_facts(files)
    row_T = probe_row(facts.vocab_size, facts.context_length)
    if not row_T.size:
        return files, tensors, None
    with torch.no_grad():  # what a model keeps of a pass, it may need with gradients
        logits_TV = model(input_ids=torch.from_numpy(row_T).long()[None], use_cache=False).logits[0]
    count = scored(row_T)
    targets_C = torch.from_numpy(row_T[-count:]).long()
    logprobs_C = torch.log_softmax(logits_TV.float(), -1)[-count - 1 : -1].gather(1, targets_C[:, None])[:, 0]
    dtype = str(model.dtype).removeprefix("torch.")
    return files, tensors, Probe(tokens=tuple(row_T.tolist()), logprobs=tuple(logprobs_C.tolist()), dtype=dtype)


def load_tensors(folder: Path) -> tuple[dict[str, bytes], dict[str, HostTensor]]:
    """(files, tensors) of a model that isn't trained, exactly as a learner would export it before its first step."""
    files, tensors, _ = _exported(folder)
    return files, tensors


def _exported(folder: Path) -> tuple[dict[str, bytes], dict[str, HostTensor], Any | None]:
    """Files, tensors and the model that they were exported from; None for a toy, behind which there is none."""
    if read_facts(read_files(folder)).model_type == TOY:
        return (*read_model(folder), None)
    model = load_causal(folder)
    tensors = export_tensors(model.state_dict(), checkpoint_layout(model))
    return described(read_files(folder), model, model.dtype), tensors, model


def _check_complete(folder: Path, model: Any, info: dict[str, Any]) -> None:
    for name, here, wanted in sorted(info["mismatched_keys"]):
        raise ConfigError(
            f"tensor {name} of model folder {folder} has shape {list(here)}, config.json makes it {list(wanted)}"
        )
    missing, surplus = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    if missing:
        raise ConfigError(
            f"model folder {folder} lacks {_named(missing)} of a {model.config.model_type} model{_why(model, missing)}"
        )
    if surplus:
        raise ConfigError(
            f"model folder {folder} holds {_named(surplus)}, which a {model.config.model_type} model has no place for; "
            "does config.json belong to these weights?"
        )
    if info["error_msgs"]:
        raise ConfigError(f"{folder} can't be loaded: {info['error_msgs'][0]}")


def _why(model: Any, missing: Collection[str]) -> str:
    head = model.get_output_embeddings()
    names = {name for name, tensor in model.named_parameters() if head is not None and tensor is head.weight}
    if names & set(missing):
        return "; if its output layer is its embedding, config.json must say tie_word_embeddings: true"
    return ""


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"tensor{'s' * (len(names) > 1)} {', '.join(names[:NAMED])}{more}"
