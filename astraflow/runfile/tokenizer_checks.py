"""Whether the tokenizers of model folders can be read, and what is said of those that prompts must do without.

It looks at folders that are here; what is downloaded is seen when it is. Needs the packages of the extra `train`: where
they are missing `tokenizer_notes` says what wasn't checked.
"""

from collections.abc import Iterator
from pathlib import Path

from astraflow.config import PolicySection, RunConfig
from astraflow.errors import ConfigError
from astraflow.extras import install_hint
from astraflow.models.resolve import known_models
from astraflow.models.tokenizer import FolderTokenizer, load_tokenizer
from astraflow.named import module_found
from astraflow.paths import user_path

_NEEDED = ("jinja2", "tokenizers")


def find_tokenizers(config: RunConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Key and problem of each policy whose tokenizer can't be read."""
    for name, policy in config.policies.items():
        if (folder := _folder(policy)) is not None and not _lacks():
            try:
                load_tokenizer(folder, shown=policy.shown_tokens)
            except ConfigError as exc:
                yield ("policies", name, "model"), str(exc)


def tokenizer_notes(config: RunConfig) -> Iterator[str]:
    """A sentence for each policy without a chat template, and for each whose tokenizer couldn't be checked."""
    for name, policy in config.policies.items():
        folder = _folder(policy)
        if folder is not None and (missing := _lacks()):
            yield (
                f"policy {name}: the tokenizer of {policy.model} wasn't checked, {', '.join(missing)} isn't installed "
                f"here; run: {install_hint('train')}"
            )
        elif folder is not None:
            tokenizer = load_tokenizer(folder, shown=policy.shown_tokens)
            if isinstance(tokenizer, FolderTokenizer) and not tokenizer.has_template:
                yield (
                    f"warning: {policy.model} of policy {name} has no chat template, so messages are joined by "
                    "newlines; put one into its tokenizer_config.json or chat_template.jinja"
                )


def _folder(policy: PolicySection) -> Path | None:
    folder = user_path(policy.model)
    return folder if policy.model not in known_models() and folder.is_dir() else None


def _lacks() -> list[str]:
    return [name for name in _NEEDED if not module_found(name)]
