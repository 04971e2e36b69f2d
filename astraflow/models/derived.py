"""A model's config as transformers derives it: dialects settled, absent keys with the family's defaults.

Reading config.json by hand means to repeat, for each family, what absent and renamed keys mean; the family's own config
class knows. Not here: weights (`loading.py`). Nothing ever runs code of a folder, or asks whether it may.
"""

from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING

from astraflow.errors import ConfigError
from astraflow.models.facts import needs_remote_code

_LISTED_MISTRAL = "ministral"  # transformers: a mistral whose config lists the kinds of its layers


def derived_config(config: Mapping[str, Any]) -> Any:
    """transformers' config object of a config.json. Raises ConfigError for a family that transformers doesn't know."""
    model_type = config.get("model_type")
    known = model_type in CONFIG_MAPPING
    if not known and needs_remote_code(config):
        raise ConfigError(
            f"the model brings code of its own (auto_map in config.json), which is never run here (trust_remote_code), "
            f"and transformers has none for model_type {model_type!r}"
        )
    if not known:
        raise ConfigError(f"transformers has no model_type {model_type!r} (config.json); a newer version may know it")
    settings = {key: value for key, value in config.items() if key not in ("model_type", "auto_map")}
    name = _LISTED_MISTRAL if model_type == "mistral" and "layer_types" in config else model_type
    try:
        return CONFIG_MAPPING[name].from_dict(settings)
    except (StrictDataclassError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as exc:
        first = next(iter(str(exc).strip().splitlines()), "") or repr(exc)
        raise ConfigError(f"transformers can't make sense of the model's config.json: {first}") from exc
