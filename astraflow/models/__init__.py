"""Model folders and chat tokenisation, without torch in this process."""

from astraflow.models.resolve import known_models, resolve_model
from astraflow.models.tokenizer import ChatTokenizer, load_tokenizer

__all__ = ["ChatTokenizer", "known_models", "load_tokenizer", "resolve_model"]
