"""What a run downloads at its first start on this machine, for people. It looks at the cache, not at the network."""

from collections.abc import Callable, Iterator

from astraflow.config import RunConfig
from astraflow.errors import ConfigError
from astraflow.models.hub import is_hub_id, model_is_here
from astraflow.models.hub_datasets import files_are_here
from astraflow.models.resolve import known_models
from astraflow.paths import user_path
from astraflow.runfile.question_sets import hub_names


def downloads(config: RunConfig) -> Iterator[str]:
    """A sentence for each model and question file that isn't here yet."""
    for name, policy in config.policies.items():
        folder = user_path(policy.model)
        if policy.model not in known_models() and not folder.is_dir() and is_hub_id(policy.model):
            yield from _missing(f"model {policy.model} of {name}", model_is_here, policy.model)
    for name, env in config.envs.items():
        for url in hub_names(env.kind, env.args):
            yield from _missing(f"{url} of environment {name}", files_are_here, url)


def _missing(what: str, is_here: Callable[[str], bool], key: str) -> Iterator[str]:
    try:
        here = is_here(key)
    except ConfigError as exc:  # huggingface_hub isn't installed
        yield f"{what}: {exc}"
        return
    if not here:
        yield f"{what} is downloaded from the Hugging Face hub at the first start"
