"""Whether graders can see the answers that a run's policies give, for people. It looks at models that are here.

Tags such as <answer> are letters to most tokenizers and special tokens to some; a reply's text leaves special tokens
out unless the policy's `shown_tokens` name them.
"""

from collections.abc import Iterator
from pathlib import Path

from astraflow.config import RunConfig
from astraflow.dataflow.tasks import players_of
from astraflow.envs.answers import TOKENS_OF_MODE, AnswerMode
from astraflow.errors import ConfigError
from astraflow.models.hub import is_hub_id, model_in_cache
from astraflow.models.resolve import known_models
from astraflow.models.tokenizer import FolderTokenizer, load_tokenizer

_DEFAULT_MODES = {"reasoning-gym": AnswerMode.TAG}  # kinds of environments that take `answer`


def unseen_answers(config: RunConfig) -> Iterator[str]:
    """A warning for each policy whose replies leave out a token that an environment finds the answer by."""
    for name, env in config.envs.items():
        if env.kind not in _DEFAULT_MODES:
            continue
        wanted = TOKENS_OF_MODE.get(env.args.get("answer", _DEFAULT_MODES[env.kind]), ())
        for policy in players_of(config, name) if wanted else ():
            section = config.policies[policy]
            missing = [token for token in wanted if token in _left_out(section.model, section.shown_tokens)]
            if missing:
                yield (
                    f"warning: environment {name} finds answers by {' and '.join(missing)}, which replies of {policy} "
                    f"don't show: special tokens of its model are left out of their text, so no answer is ever found; "
                    f"add them to policies.{policy}.shown_tokens"
                )


def _left_out(model: str, shown: tuple[str, ...]) -> frozenset[str]:
    folder: Path | None = Path(model).expanduser()
    try:
        if folder is not None and not folder.is_dir():
            folder = model_in_cache(model) if is_hub_id(model) and model not in known_models() else None
        tokenizer = load_tokenizer(folder, shown=shown) if folder is not None else None
    except ConfigError:  # said where the model is checked or loaded
        return frozenset()
    return tokenizer.left_out if isinstance(tokenizer, FolderTokenizer) else frozenset()
