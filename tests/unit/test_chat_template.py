"""Prompts from chat templates, byte for byte as transformers renders them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from precast.errors import RequestError, SourceError
from precast.runtime.text.chat_template import ChatTemplate
from tests.unit.test_tokenizer import byte_level

TEMPLATES = {
    "chatml": """{% for message in messages %}
{%- if loop.first and messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + eos_token + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "tools": """{{ bos_token }}
{%- if tools is not none %}
    {{- 'Tools: ' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=2) }}{{ tool | tojson }}
    {%- endfor %}
{%- endif %}
{%- if documents is defined %}D{{ documents }}{% endif %}
{%- set ns = namespace(last=none) %}
{%- for m in messages %}
    {%- if m.role == 'skip' %}{% continue %}{% endif %}
    {%- if m.role == 'stop' %}{% break %}{% endif %}
    {%- set ns.last = m %}
    {%- if m.role == 'assistant' %}
{% generation %}{{ m.content }}{% endgeneration %}
    {%- else %}
{{ m.role }}: {{ m.content }}
    {%- endif %}
{%- endfor %}
{{ ns.last.role }} {{ enable_thinking | default('unset') }}""",
    "whitespace": """
  {% if true %}
    a
  {% endif %}
{# a comment #}
b {{ '<&"é>' }}
""",
}
TOOLS = [{"type": "function", "function": {"name": "f", "description": 'é <x> & "y"', "parameters": {"a": [1, 2.5]}}}]
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi <b>\"é\" & 'x'</b> \n"}],
    [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "你好"},
        {"role": "assistant", "content": "b\n\n"},
    ],
    [{"role": "skip", "content": "x"}, {"role": "user", "content": "{{ 1 }}"}, {"role": "stop", "content": ""}],
]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("home", ["chat_template.jinja", "tokenizer_config.json", "a list"])
def test_prompts_are_transformers(name: str, home: str, tmp_path: Path) -> None:
    source = TEMPLATES[name]
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), chat_template=source, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    theirs.save_pretrained(tmp_path)
    if home != "chat_template.jinja":
        (tmp_path / "chat_template.jinja").unlink()
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        named = [{"name": "rag", "template": "no"}, {"name": "default", "template": source}]
        config["chat_template"] = named if home == "a list" else source
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = ChatTemplate.from_folder(tmp_path)
    assert ours is not None
    variables: list[dict[str, Any]] = [{}, {"tools": TOOLS}, {"enable_thinking": False}]
    for chat in CHATS:
        for prompt in (True, False):
            for given in variables:
                expected = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt, **given)
                assert ours.render(chat, prompt, **given) == expected


def test_the_date_is_todays() -> None:
    from datetime import datetime

    template = ChatTemplate("{{ strftime_now('%Y') }}", {}, "t")
    assert template.render([]) in {str(datetime.now().year), str(datetime.now().year - 1)}


def test_the_templates_own_refusal_reaches_the_user() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {}, "t")
    with pytest.raises(RequestError, match="roles must alternate"):
        template.render([])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].nothing.more }}",
        "{{ raise_exception.__globals__['json'] }}",
    ],
)
def test_a_hostile_template_gets_nothing(source: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(RequestError):
        ChatTemplate(source, {}, "t").render(messages)
    assert len(messages) == 1


def test_a_template_that_does_not_parse_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(SourceError, match=r"chat_template\.jinja"):
        ChatTemplate.from_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(SourceError, match="cannot be read"):
        ChatTemplate.from_folder(tmp_path)


def test_a_folder_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.from_folder(tmp_path) is None
