"""Every shape of tokenizer gives what transformers' AutoTokenizer gives on the same folder."""

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest

from astraflow.envs.base import ChatMessage
from astraflow.models.folder import read_files, write_files
from astraflow.models.quoted import Quoted
from astraflow.models.tokenizer import load_tokenizer
from astraflow.models.tokenizer_classes import CLASS_OF_TYPE, DEFAULTS, OVERRULING_TYPES, PLAIN_TYPES
from tests.models import shapes
from tests.support import prompt_tokens

TEXTS = [
    "",
    " ",
    "the answer is 42",
    " the  answer \n\n\tis 12345.678 ",
    "Zwölf große ﬁ ½ é e\u0301 Natalia's CLIPS",
    "def add(a, b):\n    return a + b\n\n\n",
    "日本語 🎉 \u200d👩‍💻 \x00 \x7f",
    "<|im_start|>user\nhi<|im_end|>\n <|left|> x <|right|> y alone x-alone aloney <think>a</think> é! e\u0301!",
    "<s>[INST] what is it? [/INST] two </s><s> [INST] x[/INST]  <unk>[CLS] a [SEP]",
    "\n\n<table>    x  y",
    "[SEP]alone<think><|im_start|>alone<|left|>x_alone",
]
CHATS = [
    [("user", "how many hours?")],
    [("user", " spaces  around \n"), ("assistant", "42"), ("user", "and\n\nthen? ½ 🎉")],
    [("user", "a"), ("assistant", "<b>x</b> [1]"), ("user", "c")],
]


@pytest.fixture(scope="module", params=shapes.SHAPES)
def shape(request, tmp_path_factory):
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoTokenizer

    build, settings, config = shapes.SHAPES[request.param]
    folder = shapes.write(tmp_path_factory.mktemp("shape"), build(), settings, config)
    return SimpleNamespace(ours=load_tokenizer(folder, shown=()), official=AutoTokenizer.from_pretrained(folder))


def dicts(chat: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in chat]


def test_encoding_and_decoding_equal_autotokenizers(shape):
    for text in TEXTS:
        ids = shape.official(text, add_special_tokens=False).input_ids
        assert shape.ours.encode(text) == ids, text
        assert shape.ours.decode(ids) == shape.official.decode(ids, skip_special_tokens=True), text
    end = shape.official.eos_token_id
    assert shape.ours.eos_token_ids == (() if end is None else (end,))


def test_chats_equal_autotokenizers(shape):
    for chat in CHATS:
        messages = [ChatMessage(*message) for message in chat]
        options: dict[str, Any] = {"add_generation_prompt": True}
        assert shape.ours.template(messages) == shape.official.apply_chat_template(
            dicts(chat), tokenize=False, **options
        )
        assert prompt_tokens(shape.ours, messages) == shape.official.apply_chat_template(
            dicts(chat), return_dict=False, **options
        )


def test_marked_text_without_control_tokens_in_content_has_the_same_ids(shape):
    """What is content is known for every character, and changes nothing."""
    for text in TEXTS:
        marked = Quoted(text, "0" * len(text))
        assert shape.ours.encode(marked) == shape.ours.encode(text), text
    template = shape.ours._templates["default"]
    for chat in CHATS:
        assert shape.ours.encode(template.render(dicts(chat), (), marked=True)) == shape.ours.encode(
            template.render(dicts(chat), ())
        )


def test_the_table_of_classes_is_transformers():
    from transformers.models.auto import tokenization_auto as auto

    ours = {"", *DEFAULTS, "TokenizersBackend"}
    official = {kind: (name or "").removesuffix("Fast") for kind, name in auto.TOKENIZER_MAPPING_NAMES.items()}
    assert {kind: name for kind, name in official.items() if name in DEFAULTS} == CLASS_OF_TYPE
    generic = {"TokenizersBackend", "MistralCommonBackend"}
    assert {kind for kind, name in official.items() if name in generic} == PLAIN_TYPES
    wrong = auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    assert {kind for kind in wrong if official.get(kind) in ours - {"TokenizersBackend", ""}} == OVERRULING_TYPES


def plain_folder(folder, settings, **files):
    shapes.write(folder, shapes.byte_level(), {**shapes.ANY, **settings}, {"model_type": "llama", "vocab_size": 500})
    for name, value in files.items():
        path = folder / name.replace("__", "/")
        path = path.with_suffix(".jinja") if isinstance(value, str) else path.with_suffix(".json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


ENDING = "{{ bos_token }}|{{ eos_token }}|{{ sep_token }}|{{ own_token }}|{{ messages[0]['content'] }}"
ADDED = {"content": "<|e|>", "lstrip": False, "rstrip": True, "normalized": False, "single_word": False}
TYPED = {"__type": "AddedToken", **ADDED, "special": True}


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        ({"eos_token": "<|im_end|>", "bos_token": None}, {}),
        ({"eos_token": TYPED, "bos_token": "<|new|>"}, {}),
        ({"own_token": "<|own|>", "extra_special_tokens": ["<|x|>", "hi"]}, {}),
        ({"additional_special_tokens": ["<|x|>", "the"], "eos_token": "<|im_end|>"}, {}),
        ({"extra_special_tokens": {"own_token": "<|own|>"}}, {}),
        ({}, {"special_tokens_map": {"eos_token": ADDED, "bos_token": "<|im_start|>"}}),
        ({"eos_token": "<|im_end|>"}, {"special_tokens_map": {"eos_token": "<|e|>"}}),
        ({}, {"added_tokens": {"<|e|>": 420, "answer": 421}, "special_tokens_map": {"eos_token": "<|e|>"}}),
        (
            {"eos_token": "<|e|>", "added_tokens_decoder": {"420": {**ADDED, "special": True}}},
            {"special_tokens_map": {"eos_token": "<|im_end|>", "bos_token": "<|im_end|>"}},
        ),
        ({"added_tokens_decoder": {"1": {**ADDED, "content": "<|im_start|>", "special": True}}}, {}),
        ({"eos_token": "<|im_end|>", "split_special_tokens": True}, {}),
    ],
)
def test_special_tokens_in_any_file_equal_autotokenizers(tmp_path, settings, files):
    from transformers import AutoTokenizer

    folder = plain_folder(tmp_path, {"chat_template": ENDING, **settings}, **files)
    ours, official = load_tokenizer(folder, shown=()), AutoTokenizer.from_pretrained(folder)
    text = "<|im_start|> the <|e|>  answer<|x|>hi <|own|><|im_end|> <|new|> "
    ids = official(text, add_special_tokens=False).input_ids
    assert ours.encode(text) == ids
    assert ours.decode(ids) == official.decode(ids, skip_special_tokens=True)
    assert ours.encode(Quoted(text, "0" * len(text))) == ids
    chat = [{"role": "user", "content": "hours"}]
    expected = official.apply_chat_template(chat, tokenize=False)
    assert ours.template([ChatMessage("user", "hours")]) == expected
    assert ours.eos_token_ids == (() if official.eos_token_id is None else (official.eos_token_id,))


NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


@pytest.mark.parametrize(
    ("settings", "files", "tools"),
    [
        ({"chat_template": "S"}, {}, False),
        ({"chat_template": NAMED}, {}, False),
        ({"chat_template": NAMED}, {}, True),
        ({"chat_template": {"default": "D", "tool_use": "T"}}, {}, True),
        ({"chat_template": "S"}, {"chat_template": "F"}, False),
        ({"chat_template": NAMED}, {"chat_template": "F"}, True),
        ({}, {"chat_template": "F", "additional_chat_templates__tool_use": "A"}, True),
        ({}, {"chat_template": "F", "additional_chat_templates__tool_use": "A"}, False),
        ({}, {"chat_template": "F", "additional_chat_templates__rag": "A"}, True),
    ],
)
def test_the_chat_template_is_found_where_autotokenizer_finds_it(tmp_path, settings, files, tools):
    from transformers import AutoTokenizer

    folder = plain_folder(tmp_path, settings, **files)
    given = [{"type": "function", "function": {"name": "f"}}] if tools else None
    official = AutoTokenizer.from_pretrained(folder)
    expected = official.apply_chat_template([{"role": "user", "content": "x"}], tools=given, tokenize=False)
    assert load_tokenizer(folder).template([ChatMessage("user", "x")], given or ()) == expected


def test_named_templates_travel_with_the_model_and_names_lead_nowhere_else(tmp_path):
    (source := tmp_path / "source").mkdir()
    (target := tmp_path / "target").mkdir()
    plain_folder(source, {}, chat_template="F", additional_chat_templates__tool_use="A")
    files = read_files(source)
    assert "additional_chat_templates/tool_use.jinja" in files
    write_files(target, {**files, "../../stray.json": b"{}", "../additional_chat_templates/x.jinja": b"X"})
    for tools, text in (((), "F"), (({"name": "f"},), "A")):
        assert load_tokenizer(target).template([ChatMessage("user", "x")], tools) == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]
    assert (target / "additional_chat_templates" / "x.jinja").is_file()


def test_a_template_for_processors_counts_where_there_is_no_other(tmp_path):
    folder = plain_folder(tmp_path, {})
    (folder / "chat_template.json").write_text('{"chat_template": "P"}')
    assert load_tokenizer(folder).template([ChatMessage("user", "x")]) == "P"
