"""Prompts from chat templates, byte for byte as transformers renders them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


PUBLIC = sorted(path.stem for path in (Path(__file__).parent / "chat_templates").glob("*.jinja"))
"""Templates with the features of public ones, each in its own words."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather at a place, with <b>"quotes"</b> & é, in more than forty characters.',
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "where"},
                "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "near": {"type": "object", "properties": {"x": {"type": "number"}, "a": {"type": ["string", "null"]}}},
                "or": {"oneOf": [{"type": "boolean"}, {"type": "object", "default": {"a": None}}]},
            },
            "required": ["place"],
        },
    },
}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "Zürich"}}}
LONG: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": " hi <b>\"é\" & 'x'</b> \n"}],
    [
        {"role": "system", "content": " Be terse. /no_think"},
        {"role": "user", "content": "你好 👩‍👩‍👧"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb\n\n"},
        {"role": "user", "content": "{{ 1 }} {% raw %}"},
    ],
    [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "21", "tool_call_id": "abcdefghi"},
        {"role": "tool", "content": "22 °C", "tool_call_id": "abcdefghi"},
        {"role": "assistant", "content": "It is 21.", "reasoning_content": "easy"},
    ],
    [{"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "image"}, {"type": "text", "text": "b"}]}],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, {"role": "robot", "content": "c"}],
    [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b", "hidden": True},
        {"role": "end", "content": ""},
    ],
]
VARIABLES: list[dict[str, Any]] = [
    {},
    {"tools": [WEATHER]},
    {"tools": [WEATHER, {"type": "function", "function": {"name": "f", "description": "d"}}], "enable_thinking": False},
    {"documents": [{"title": "T", "text": "x"}, {"doc_id": 7, "text": "y"}], "controls": {"length": "short"}},
    {"builtin_tools": ["get_weather", "code_interpreter"], "date_string": "1 Jan 2000", "tools_in_user_message": False},
]


def outcome(render: Any) -> tuple[str, str]:
    try:
        return "text", render()
    except Exception as error:
        return "error", str(error).removeprefix("the chat template refused these messages: ")


@pytest.mark.parametrize("name", PUBLIC)
def test_public_templates_give_transformers_prompts(name: str, tmp_path: Path) -> None:
    source = (Path(__file__).parent / "chat_templates" / f"{name}.jinja").read_text()
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), chat_template=source, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    theirs.save_pretrained(tmp_path)
    ours = ChatTemplate.from_folder(tmp_path)
    assert ours is not None
    kinds = []
    for chat in LONG:
        for prompt in (True, False):
            for given in VARIABLES:
                expected = outcome(
                    lambda: theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt, **given)  # noqa: B023
                )
                assert outcome(lambda: ours.render(chat, prompt, **given)) == expected  # noqa: B023
                kinds.append(expected[0])
    assert kinds.count("text") >= len(kinds) / 4


def named_templates(folder: Path, templates: dict[str, str], home: str) -> None:
    """Writes several templates as one of the forms in which transformers finds them."""
    config: dict[str, Any] = {"bos_token": "<|im_start|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    if home == "files":
        (folder / "additional_chat_templates").mkdir()
        for name, source in templates.items():
            inside = "chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja"
            (folder / inside).write_text(source)
    else:
        listed = [{"name": name, "template": source} for name, source in templates.items()]
        config["chat_template"] = templates if home == "object" else listed
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    byte_level().save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("home", ["files", "list", "object"])
@pytest.mark.parametrize("names", [("default", "tool_use", "rag"), ("rag", "tool_use"), ("rag",)])
def test_a_named_template_is_chosen_as_transformers_chooses(names: tuple[str, ...], home: str, tmp_path: Path) -> None:
    named_templates(tmp_path, {name: f"{name} {{{{ bos_token }}}}" for name in names}, home)
    ours, theirs = ChatTemplate.from_folder(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours is not None
    for given in ({}, {"tools": TOOLS}, {"chat_template": "rag"}):
        expected = outcome(lambda: theirs.apply_chat_template(CHATS[0], tokenize=False, **given))  # noqa: B023
        text = outcome(lambda: ours.render(CHATS[0], False, **given))  # noqa: B023
        assert text == expected if expected[0] == "text" else text[0] == "error"
    with pytest.raises(RequestError, match="rag"):
        ours.render(CHATS[0], chat_template="unknown")


def test_a_file_or_a_name_replaces_the_models_choice(tmp_path: Path) -> None:
    named_templates(tmp_path, {"default": "D", "rag": "R"}, "list")
    (tmp_path / "mine").write_text("{{ bos_token }}M")
    for chosen, text in ((tmp_path / "mine", "<|im_start|>M"), (str(tmp_path / "mine"), "<|im_start|>M"), ("rag", "R")):
        template = ChatTemplate.from_folder(tmp_path, chosen)
        assert template is not None
        assert template.render(CHATS[0]) == text
    with pytest.raises(SourceError, match="default, rag"):
        ChatTemplate.from_folder(tmp_path, "other")
    with pytest.raises(SourceError, match="the model has none"):
        ChatTemplate.from_folder(tmp_path / "nothing", "other")


@pytest.mark.parametrize("value", [7, [1], [{"name": "x"}], {"default": 1}])
def test_a_config_with_something_else_is_named(value: Any, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(SourceError, match="chat_template is neither"):
        ChatTemplate.from_folder(tmp_path)


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
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_hostile_template_gets_nothing(source: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(RequestError):
        ChatTemplate(source, {}, "t").render(messages)
    assert len(messages) == 1


ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}"
    "{% endfor %}",
    "a long text": "{{ 'a' * 10**10 }}",
    "a text that doubles": "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}"
    "{% endfor %}",
    "a list that doubles, as JSON": "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}"
    "{% endfor %}{{ n.s | tojson }}",
    "much text": "{% for i in range(99999) %}{{ 'x' * 200 }}{% endfor %}",
    "a wide number": "{{ '%0999999999d' % 1 }}",
    "a filter": "{{ lipsum(n=10**9) }}",
    "a large power": "{{ 7 ** (7 ** 9) }}",
    "recursion": "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_template_that_does_not_end_is_one_requests_error(kind: str) -> None:
    with pytest.raises(RequestError, match=r"loop for ever|too deeply"):
        ChatTemplate(ENDLESS[kind], {}, "t").render([])
    assert ChatTemplate("{{ messages[0] }}", {}, "t").render(["next"]) == "next"  # type: ignore[list-item]


PEAK = """
import json, resource, sys
from precast.errors import RequestError
from precast.runtime.text.template_process import shared
for source in json.load(sys.stdin):
    try:
        shared.render(source, {"messages": []})
    except RequestError:
        pass
shared.stop()
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_a_template_that_does_not_end_takes_less_than_200_mb() -> None:
    # A process counts the memory of the one that it was split off from, here with torch: so a shell stands between.
    run = subprocess.run(
        ["sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, PEAK],
        input=json.dumps(list(ENDLESS.values())),
        capture_output=True,
        text=True,
        check=True,
    )
    assert max(int(kilobytes) for kilobytes in run.stdout.split()) < 200_000


REPLACED = """
from precast.errors import RequestError
from precast.runtime.text.template_process import shared
try:
    shared.render("{{ 7 ** (7 ** 9) }}", {})
except RequestError:
    print(shared.render("next", {}))
"""


def test_a_process_that_ended_leaves_no_pipe_behind() -> None:
    command = [sys.executable, "-X", "dev", "-c", REPLACED]  # which tells of what is not closed, at exit too
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("next\n", "")


def test_a_template_whose_compilation_does_not_end_is_a_source_error() -> None:
    for source in ("{{ 7 ** (7 ** 9) }}", "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}"):
        with pytest.raises(SourceError, match=r"t is not a valid chat template: it (takes|nests)"):
            ChatTemplate(source, {}, "t").check()


def test_messages_that_are_not_json_are_refused() -> None:
    template = ChatTemplate("{{ messages }}", {}, "t")
    with pytest.raises(RequestError, match="JSON"):
        template.render([{"role": "user", "content": object()}])
    assert template.render([{"role": "user", "content": "\ud800"}]) == "[{'role': 'user', 'content': '\\ud800'}]"


def test_a_child_after_a_fork_renders_with_a_process_of_its_own() -> None:
    template = ChatTemplate("{{ messages[0] }}", {}, "t")
    assert template.render(["a"]) == "a"  # type: ignore[list-item]
    if (child := os.fork()) == 0:
        os._exit(0 if template.render(["b"]) == "b" else 1)  # type: ignore[list-item]
    assert os.waitpid(child, 0)[1] == 0
    assert template.render(["c"]) == "c"  # type: ignore[list-item]


def test_a_template_that_does_not_parse_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    template = ChatTemplate.from_folder(tmp_path)
    assert template is not None
    with pytest.raises(SourceError, match="not a valid chat template"):
        template.check()
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(SourceError, match="cannot be read"):
        ChatTemplate.from_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"x" * (1 << 20 | 1))
    with pytest.raises(SourceError, match="larger than 1 MiB"):
        ChatTemplate.from_folder(tmp_path)


def test_a_folder_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.from_folder(tmp_path) is None
