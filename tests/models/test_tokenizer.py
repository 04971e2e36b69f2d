"""Chat tokenisation: equal to transformers', total over any text, safe with hostile templates."""

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.envs.base import ChatMessage
from astraflow.errors import ConfigError, EnvError
from astraflow.models.resolve import resolve_model
from astraflow.models.tokenizer import ToyTokenizer, load_tokenizer, utf8
from tests.support import prompt_tokens

BYTES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
TEMPLATE = (
    "{%- for message in messages %}\n"
    "    {%- if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('bad role') }}{% endif %}\n"
    "    {%- if loop.index > 50 %}{% break %}{% endif %}\n"
    "{{ bos_token }}{{ message['role'] }}: {{ message['content'] | tojson }}\n"
    "    {%- if message['role'] == 'assistant' %}{% generation %}{{ eos_token }}{% endgeneration %}{% endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ bos_token }}assistant: {% endif %}"
)


def byte_level(folder, *, template=TEMPLATE, config=None):
    """A real byte-level BPE without merges: every byte is a token, three special ones besides."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    rest = [chr(256 + n) for n in range(256 - len(BYTES))]
    vocabulary = {c: n for n, c in enumerate([*map(chr, BYTES), *rest])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
    settings["eos_token"] = {"__type": "AddedToken", "content": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama", "vocab_size": 320}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return byte_level(tmp_path_factory.mktemp("model"))


CONVERSATIONS = [
    [("user", "hi")],
    [("system", "Be brief."), ("user", 'a "quote" <b> & ü 🎉\n\ttab'), ("assistant", "ok"), ("user", "more")],
    [("user", "{{ 7 * 7 }} {% if %} < /s> <S>")],
    [("user", "")],
]


@pytest.mark.slow
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_render_equals_transformers(tmp_path, conversation):
    from transformers import AutoTokenizer

    ours = prompt_tokens(byte_level(tmp_path), [ChatMessage(*message) for message in conversation])
    messages = [{"role": role, "content": content} for role, content in conversation]
    official = AutoTokenizer.from_pretrained(tmp_path)
    assert ours == official.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=80))
def test_text_survives_a_round_trip(tokenizer, text):
    tokens = tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
    plain = text.replace("<s>", "").replace("</s>", "").replace("<pad>", "")
    assert tokenizer.decode(tokens) == plain


@given(st.text(max_size=40), st.lists(st.integers(-5, 400), max_size=40))
def test_whatever_comes_in_what_goes_out_is_utf8(tokenizer, text, tokens):
    for each in (tokenizer, ToyTokenizer()):
        rendered = prompt_tokens(each, [ChatMessage("user", text)])
        assert all(0 <= token < each.vocab_size for token in rendered)
        each.decode(tokens).encode()
        each.decode(rendered).encode()


def test_lone_surrogates_are_replaced_and_pairs_joined(tokenizer):
    assert utf8("a\ud800b") == "a\ufffdb"
    assert utf8("\ud83c\udf89") == "🎉"
    assert "\ufffd" in tokenizer.decode(prompt_tokens(tokenizer, [ChatMessage("user", "\udfff")]))
    assert tokenizer.decode([BYTES.index(0xF0), BYTES.index(0xC3)]) == "\ufffd\ufffd"  # cut-off UTF-8


def test_end_tokens_come_from_all_three_places(tmp_path):
    config = {"model_type": "llama", "vocab_size": 320, "eos_token_id": [300, 7]}
    byte_level(tmp_path, config=config)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 8}')
    loaded = load_tokenizer(tmp_path)
    assert loaded.eos_token_ids == (7, 8, 257, 300)
    assert loaded.vocab_size == 320


def test_without_a_template_contents_are_joined_plainly(tmp_path):
    plain = byte_level(tmp_path, template=None)
    assert plain.decode(prompt_tokens(plain, [ChatMessage("system", "a"), ChatMessage("user", "b")])) == "a\nb"


def test_templates_inside_the_tokenizer_config_count(tmp_path):
    byte_level(tmp_path, template=None)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D{{ messages[0].content }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": named}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.decode(prompt_tokens(tokenizer, [ChatMessage("user", "x")])) == "Dx"


def test_a_template_that_refuses_is_an_env_error(tokenizer):
    with pytest.raises(EnvError, match="bad role"):
        prompt_tokens(tokenizer, [ChatMessage("critic", "x")])


def test_a_template_cant_reach_the_interpreter(tmp_path):
    attack = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(EnvError, match="unsafe"):
        prompt_tokens(byte_level(tmp_path, template=attack), [ChatMessage("user", "x")])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", "{", "can't be read"),
        ("config.json", "[]", "expected a JSON object"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", "{}", "can't be read"),
        ("chat_template.jinja", "{% if %}", "can't be compiled"),
    ],
)
def test_broken_folders_are_config_errors(tmp_path, name, content, message):
    byte_level(tmp_path)
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(tmp_path)


def test_the_toy_tokenizer_never_gives_an_end_token_and_reads_back_its_own_text():
    toy = load_tokenizer(resolve_model("toy"))
    assert isinstance(toy, ToyTokenizer)
    assert (toy.vocab_size, toy.eos_token_ids) == (64, (0,))
    tokens = list(range(1, 64))
    assert prompt_tokens(toy, [ChatMessage("user", toy.decode([0, *tokens, 64, -1]))]) == tokens
    assert 0 not in prompt_tokens(toy, [ChatMessage("user", "@@\0")])
    assert prompt_tokens(toy, [ChatMessage("user", "")]) == [1]


def test_an_install_without_extras_has_the_toy_tokenizer():
    """jinja2 and tokenizers come with extras; actors that need no model folder run without them."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('jinja2', 'tokenizers', 'transformers', 'torch')))\n"
        "import astraflow.runfile, astraflow.actors.dataflow.actor, astraflow.actors.rollout.handle\n"
        "from astraflow.models.tokenizer import ToyTokenizer; print(ToyTokenizer().encode('ab'))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[33, 34]\n"
