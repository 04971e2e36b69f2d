"""Facts of model folders: end tokens out of all files, sizes of all dialects, and what is refused in words."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from astraflow.errors import ConfigError
from astraflow.models.facts import end_tokens, read_facts
from astraflow.models.folder import read_files
from astraflow.models.tokenizer import load_tokenizer

BASE = {"model_type": "qwen2", "vocab_size": 320, "max_position_embeddings": 512}
TOKENIZER = {"added_tokens": [{"id": 2, "content": "<|im_end|>", "special": True}], "model": {"vocab": {"</s>": 9}}}


def files(**contents: Any) -> dict[str, bytes]:
    """JSON files by their names without the ending."""
    return {f"{name}.json": json.dumps(value).encode() for name, value in contents.items()}


@pytest.mark.parametrize(
    ("contents", "wanted"),
    [
        ({"config": {}}, ()),
        ({"config": {"eos_token_id": None}}, ()),
        ({"config": {"eos_token_id": 0}}, (0,)),
        ({"config": {"eos_token_id": [5, 3, 5]}}, (3, 5)),
        ({"config": {"eos_token_id": []}}, ()),
        ({"config": {"eos_token_id": -1}}, ()),
        ({"config": {"eos_token_id": [0, 2]}, "generation_config": {"eos_token_id": 1}}, (0, 1, 2)),
        ({"config": {"text_config": {"eos_token_id": 7}, "eos_token_id": 1}}, (1, 7)),
        ({"config": {}, "generation_config": {"eos_token_id": [4]}}, (4,)),
        ({"tokenizer_config": {"eos_token": "<|im_end|>"}, "tokenizer": TOKENIZER}, (2,)),
        ({"tokenizer_config": {"eos_token": {"content": "<|im_end|>"}}, "tokenizer": TOKENIZER}, (2,)),
        ({"special_tokens_map": {"eos_token": "<|im_end|>"}, "tokenizer": TOKENIZER}, (2,)),
        ({"special_tokens_map": {"eos_token": {"content": "</s>"}}, "tokenizer": TOKENIZER}, (9,)),
        ({"tokenizer_config": {"eos_token": "b"}, "tokenizer": {"model": {"vocab": [["a", 0.0], ["b", -1.0]]}}}, (1,)),
        ({"tokenizer_config": {"eos_token": "x", "added_tokens_decoder": {"6": {"content": "x"}}}}, (6,)),
        ({"tokenizer_config": {"eos_token": "x"}, "added_tokens": {"x": 8}}, (8,)),
        ({"tokenizer_config": {"eos_token": "nowhere"}, "tokenizer": TOKENIZER}, ()),
        ({"tokenizer_config": {"eos_token": None}, "tokenizer": TOKENIZER}, ()),
        ({"config": {"eos_token_id": 0}, "tokenizer_config": {"eos_token": "</s>"}, "tokenizer": TOKENIZER}, (0, 9)),
    ],
)
def test_end_tokens_are_those_of_all_files(contents: dict[str, Any], wanted: tuple[int, ...]) -> None:
    assert end_tokens(files(**contents)) == wanted


@pytest.mark.parametrize("value", ["</s>", 1.5, True, [[1]], {"id": 1}, ["2"]])
def test_end_tokens_that_are_no_tokens_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"eos_token_id of the model.s config\.json is"):
        end_tokens(files(config={"eos_token_id": value}))


@pytest.mark.parametrize(
    ("changes", "context"),
    [
        ({}, 512),
        ({"max_position_embeddings": None, "n_positions": 128}, 128),
        ({"text_config": {"vocab_size": 320, "max_position_embeddings": 64}}, 64),
        ({"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 32}}, 32),
        ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 16}, 16),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 48}}, 48),
        ({"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 32}}, 512),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 512),
        ({"max_position_embeddings": ...}, 32768),  # the family's own
        ({"model_type": "llama", "max_position_embeddings": ...}, 2048),
    ],
)
def test_context_lengths_of_all_dialects(changes: dict[str, Any], context: int) -> None:
    config = {key: value for key, value in (BASE | changes).items() if value is not ...}
    facts = read_facts(files(config=config))
    assert (facts.context_length, facts.vocab_size) == (context, 320)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised .gptq."),
        ({"quantization_config": {"load_in_4bit": True}}, "quantised .quantization_config."),
        ({"compression_config": {"format": "int"}}, "quantised"),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "quantised .fp8."),
        ({"model_type": None}, "names no model_type"),
        ({"model_type": ["llama"]}, "names no model_type"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"vocab_size": "320"}, "vocab_size"),
        ({"max_position_embeddings": -1}, "max_position_embeddings"),
        ({"model_type": "no-such-family", "vocab_size": None}, "no-such-family"),
        ({"model_type": "own", "vocab_size": None, "auto_map": {"AutoConfig": "own.Config"}}, "trust_remote_code"),
    ],
)
def test_models_that_cannot_be_used_are_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_facts(files(config=BASE | changes))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_files_that_are_no_objects_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_facts({"config.json": data})


@pytest.mark.parametrize(
    ("config", "generation"),
    [({"eos_token_id": 0}, None), ({"eos_token_id": [0, 2]}, {"eos_token_id": 0}), ({"eos_token_id": None}, None)],
)
def test_tokenizer_and_engine_stop_at_the_same_tokens(
    config: dict[str, Any], generation: dict[str, Any] | None, tmp_path: Path
) -> None:
    vocabulary = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "a": 3}
    Tokenizer(WordLevel(vocabulary, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    contents = {"config": BASE | config, "tokenizer_config": {"eos_token": "<|im_end|>"}}
    contents |= {"generation_config": generation} if generation else {}
    for name, data in files(**contents).items():
        (tmp_path / name).write_bytes(data)
    wanted = (0, 2) if config["eos_token_id"] is not None else (2,)
    assert load_tokenizer(tmp_path).eos_token_ids == wanted
    assert read_facts(read_files(tmp_path)).eos_token_ids == wanted
