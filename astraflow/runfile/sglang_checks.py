"""What [policies.<name>.engine.sglang] means together with the rest. A ConfigError says what to do.

Whether SGLang knows an argument is for SGLang to say, at its start: versions differ.
"""

import re
from collections.abc import Iterator

from astraflow.config import PolicySection, RunConfig
from astraflow.errors import ConfigError
from astraflow.runfile.decode import Where

_OURS = {  # server arguments that the engine gives: what to use instead
    "model_path": "the policy's model",
    "model": "the policy's model",
    "host": "engine.sglang.url for a server elsewhere",
    "port": "engine.sglang.url for a server elsewhere",
    "dtype": "engine.dtype",
    "context_length": "engine.context_length",
    "api_key": "nothing: a launched server gets a key of its own",
    "admin_api_key": "nothing: a launched server gets a key of its own",
    "dp_size": "more replicas: engine.replicas",
    "data_parallel_size": "more replicas: engine.replicas",
    "pp_size": "tp_size: weights can't be changed stage by stage",
    "pipeline_parallel_size": "tp_size: weights can't be changed stage by stage",
    "tokenizer_worker_num": "nothing: a pause must stop all of the server",
    "ssl_keyfile": "nothing: a launched server listens on loopback only",
    "ssl_certfile": "nothing: a launched server listens on loopback only",
    "weight_version": "nothing: versions come with the weights",
    "custom_weight_loader": "engine.sglang.update",
    "config": "engine.sglang.args",
    "skip_tokenizer_init": "nothing: tokens go in and out",
    "incremental_streaming_output": "nothing: it is on",
    "enable_metrics": "nothing: it is on",
}


def check_sglang(name: str, policy: PolicySection, config: RunConfig, where: Where) -> Iterator[ConfigError]:
    """Its mistakes."""
    path, section = ("policies", name, "engine", "sglang"), policy.engine.sglang
    if policy.engine.kind != "sglang":
        if section != type(section)():
            yield where.error(path, f'is given, but engine.kind is "{policy.engine.kind}"; set it to "sglang"')
        return
    if config.run.deterministic:
        yield where.error(
            ("policies", name, "engine", "kind"),
            'is "sglang", which does not repeat a run to the last bit; use "cpu", or run.deterministic = false',
        )
    if section.url:
        for key in ("args", "python"):
            if getattr(section, key):
                yield where.error((*path, key), "is for a server that is launched, but url attaches to one that runs")
        if not re.fullmatch(r"https?://[^/\s]+/?", section.url):
            yield where.error((*path, "url"), f"is {section.url!r}, expected one like http://host:30000")
    elif section.key_env:
        yield where.error(
            (*path, "key_env"), "is for the server at url, and there is none; a launched server has its own"
        )
    for argument in section.args:
        plain = argument.removeprefix("--").replace("-", "_")
        if plain != argument:
            yield where.error((*path, "args"), f"has {argument!r}; write it as {plain!r}")
        elif plain in _OURS:
            yield where.error((*path, "args"), f"has {argument!r}, which AstraFlow sets; use {_OURS[plain]}")
