"""Every command on a tiny model: what it prints, and what programs may read."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from precast import LLM, SamplingParams, __version__
from tests.e2e.command_line import Terminal, precast, start, state_of

GREEDY = ("--temperature", 0, "--max-tokens", 12)


def test_version_and_help() -> None:
    assert precast("--version").done() == f"precast, version {__version__}\n"
    for command in ("", "convert", "build", "run", "chat", "plan", "inspect", "cache"):
        shown = precast(*command.split(), "--help").done()
        assert "Example" in shown
        assert "precast " + command in shown


def test_run_gives_what_python_gives(engine: Path) -> None:
    text = precast("run", engine, "the dog", *GREEDY).done()
    with LLM(engine) as llm:
        expected = llm.chat([{"role": "user", "content": "the dog"}], SamplingParams(max_tokens=12, temperature=0))
        raw = llm.generate("the dog", SamplingParams(max_tokens=12, temperature=0))[0]
    assert text == expected.text + "\n"
    assert precast("run", engine, "-", *GREEDY, stdin="the dog").done() == text
    assert precast("run", engine, "the dog", "--raw", *GREEDY).done() == raw.text + "\n"
    assert raw.text != expected.text


def test_an_answer_that_the_engine_cuts_says_so(checkpoint: Path, tmp_path: Path) -> None:
    precast("build", checkpoint, "--output-dir", tmp_path / "short", "--max-seq-len", 32).done()
    for command in (("run", tmp_path / "short", "the dog"), ("chat", tmp_path / "short")):
        cut = precast(*command, "--ignore-eos", stdin="the dog\n")
        assert "max_seq_len is reached" in cut.err
        assert precast(*command, "--ignore-eos", "--max-tokens", 2, stdin="the dog\n").err == ""


def test_another_chat_template_makes_another_prompt(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ messages[-1].content }}")
    bare = precast("run", engine, "the dog", "--raw", *GREEDY).done()
    given = ("--chat-template", tmp_path / "mine.jinja", *GREEDY)
    assert precast("run", engine, "the dog", *given).done() == bare
    assert precast("chat", engine, *given, stdin="the dog\n").done().rstrip("\n") == bare.rstrip("\n")


def test_run_json_holds_ids_usage_and_seed(engine: Path) -> None:
    sampled = (
        "--temperature",
        1.5,
        "--top-k",
        50,
        "--top-p",
        0.95,
        "--min-p",
        0.001,
        "--seed",
        7,
        "--max-tokens",
        9,
        "--ignore-eos",
    )
    first, second = (json.loads(precast("run", engine, "fox", "--json", *sampled).done()) for _ in range(2))
    assert first["seed"] == 7
    assert len(first["token_ids"]) == first["usage"]["completion_tokens"] == 9
    assert first["finish_reason"] == "length"
    assert first["token_ids"] == second["token_ids"]
    other = json.loads(precast("run", engine, "fox", "--json", *sampled, "--seed", 8).done())
    assert other["token_ids"] != first["token_ids"]


def test_run_gives_several_answers_and_their_logprobs(engine: Path) -> None:
    asked = ("run", engine, "fox", "--temperature", 1, "--seed", 7, "--max-tokens", 5, "--ignore-eos", "--n", 2)
    answers = json.loads(precast(*asked, "--json", "--logprobs", 0).done())["outputs"]
    assert [len(answer["logprobs"]) for answer in answers] == [5, 5]
    assert precast(*asked).done() == "".join(f"[{i}] {answer['text']}\n" for i, answer in enumerate(answers))
    assert json.loads(precast(*asked, "--json", "--n", 1).done())["text"] == answers[0]["text"]
    assert "need --json" in precast(*asked, "--logprobs", 0).failed(2)


def test_run_penalizes_biases_and_bans(engine: Path) -> None:
    asked = ("run", engine, "fox", "--json", "--temperature", 0, "--max-tokens", 12, "--ignore-eos")
    plain = json.loads(precast(*asked).done())["token_ids"]
    forced = json.loads(precast(*asked, "--logit-bias", f"{plain[0] + 1}=100").done())["token_ids"]
    assert set(forced) == {plain[0] + 1}
    penalties = ("--repetition-penalty", 1.5, "--presence-penalty", 2, "--frequency-penalty", 2)
    assert json.loads(precast(*asked, *penalties).done())["token_ids"] != plain
    assert "is not a token id and a number" in precast(*asked, "--logit-bias", "x").failed(2)


def test_run_stops_at_a_text(engine: Path) -> None:
    asked = ("run", engine, "lazy", "--json", "--ignore-eos", "--temperature", 0, "--max-tokens", 100)
    whole = json.loads(precast(*asked).done())["text"]
    found = re.search("[a-z]{2}", whole)  # a random model says random bytes, some of which are no characters
    assert found is not None
    stop = found[0]
    cut = json.loads(precast(*asked, "--stop", "not said", "--stop", stop).done())
    assert cut["text"] == whole[: whole.index(stop)]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)


def test_run_answers_a_file_in_its_order(engine: Path, tmp_path: Path) -> None:
    prompts = ["the fox", "a dog sleeps", "sun"]
    questions, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    lines = [json.dumps({"prompt": p}) for p in prompts]
    lines.append(json.dumps({"messages": [{"role": "user", "content": "sun"}]}))
    questions.write_text("\n\n".join(lines) + "\n")
    done = precast("run", engine, "--input-file", questions, "--output-file", answers, "--stats", *GREEDY)
    assert done.done() == ""
    assert done.err.count("first token after") == 4
    assert re.search(r"^all: 4 prompts, \d+ tokens in .* tokens/s$", done.err, re.M)
    read = [json.loads(line)["text"] for line in answers.read_text().splitlines()]
    assert read == [precast("run", engine, p, *GREEDY).done()[:-1] for p in [*prompts, "sun"]]
    assert precast("run", engine, "--input-file", questions, *GREEDY).done().count("\n") == 4


def test_a_line_has_settings_of_its_own_and_an_id(engine: Path, tmp_path: Path) -> None:
    questions = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "the fox", "max_tokens": 3, "id": "a-1"},
        {"prompt": "the fox", "id": 7, "priority": 2, "logit_bias": {"70": 100}},
        {"prompt": "the fox"},
    ]
    questions.write_text("\n".join(map(json.dumps, lines)))
    answers = precast("run", engine, "--input-file", questions, "--max-tokens", 5, "--ignore-eos", "--seed", 3).done()
    short, biased, plain = map(json.loads, answers.splitlines())
    assert (short["id"], biased["id"], "id" in plain) == ("a-1", 7, False)
    assert [len(answer["token_ids"]) for answer in (short, biased, plain)] == [3, 5, 5]
    assert short["token_ids"] == plain["token_ids"][:3]
    assert biased["token_ids"] == [70] * 5
    assert {answer["seed"] for answer in (short, biased, plain)} == {3}


def test_a_line_that_is_refused_is_named(engine: Path, tmp_path: Path) -> None:
    questions = tmp_path / "prompts.jsonl"
    for line, reason in (
        (json.dumps({"prompt": "the " * 9000}), r"line 3: the prompt has \d+ tokens"),
        (
            '{"prompt": "a", "max_token": 3}',
            "line 3: max_token is not known; a line has a prompt or messages, an id and",
        ),
        ('{"prompt": "a", "top_p": 3}', "line 3: top_p is 3"),
        ('{"prompt": "a", "timeout": "x"}', "line 3: timeout is 'x'"),
        ('{"prompt": "a", "logit_bias": {"x": 1}}', "line 3: logit_bias must map token ids to numbers"),
        ('{"prompt": "a", "messages": []}', "line 3: expected"),
    ):
        questions.write_text(f'{{"prompt": "the fox"}}\n\n{line}\n')
        assert re.search(reason, precast("run", engine, "--input-file", questions).failed(1))


def test_run_answers_a_file_from_a_pipe(engine: Path) -> None:
    lines = '{"prompt": "the dog"}\n{"prompt": "a cat"}\n'
    answers = precast("run", engine, "--input-file", "-", *GREEDY, stdin=lines).done().splitlines()
    assert json.loads(answers[0])["text"] + "\n" == precast("run", engine, "the dog", *GREEDY).done()
    assert len(answers) == 2
    assert "standard input, line 1" in precast("run", engine, "--input-file", "-", stdin="x").failed(1)


def test_run_streams(engine: Path) -> None:
    """The first text arrives while the answer is still being made."""
    running = start("run", engine, "the", "--ignore-eos", "--max-tokens", 8000, "--raw")
    assert running.stdout is not None
    assert running.stdout.read(1)
    assert running.poll() is None
    running.kill()
    running.communicate()


def test_run_of_a_model_builds_once(hf_folder: Path, tmp_path: Path) -> None:
    cache = {"PRECAST_CACHE": str(tmp_path)}
    first = precast("run", hf_folder, "the dog", *GREEDY, **cache)
    before = state_of(tmp_path)
    second = precast("run", hf_folder, "the dog", *GREEDY, **cache)
    assert first.done() == second.done()
    assert (first.err, second.err) == ("", "")  # no progress where nobody watches
    assert state_of(tmp_path) == before
    assert len(list((tmp_path / "engines").iterdir())) == 1
    precast("run", hf_folder, "the dog", "--quant", "none", *GREEDY, **cache).done()
    assert len(list((tmp_path / "engines").iterdir())) == 2


def test_run_shows_progress_in_a_terminal(hf_folder: Path) -> None:
    terminal = Terminal("run", hf_folder, "the dog", "--quant", "none", *GREEDY)
    terminal.wait_for("Converting")
    terminal.wait_for("Packing weights")
    terminal.wait_for("100%")
    assert terminal.end() == 0


def test_inspect_tells_what_each_thing_is(hf_folder: Path, checkpoint: Path, engine: Path) -> None:
    shown = {
        path.name: json.loads(precast("inspect", path, "--json").done()) for path in (hf_folder, checkpoint, engine)
    }
    assert shown["tiny-llama"]["kind"] == "huggingface"
    assert shown["tiny-llama"]["hidden_size"] == shown["checkpoint"]["hidden_size"] == 96
    assert shown["tiny-llama"]["refused"] is None
    assert set(shown["tiny-llama"]["stored_as"]) <= {"F32", "BF16"}
    assert shown["checkpoint"]["quantization"]["quant_algo"] == "W8A8_DYNAMIC"
    assert shown["engine"]["kind"] == "engine"
    assert shown["engine"]["build_config"]["max_seq_len"] == 8192
    assert "W8A8_DYNAMIC" in precast("inspect", checkpoint).done()
    assert "paged_attention" in precast("inspect", engine, "--plan").done()
    verified = json.loads(precast("inspect", engine, "--verify", "--json").done())
    assert verified["damage"] == []
    assert verified["verified_bytes"] > 0


def test_inspect_shows_what_was_timed(checkpoint: Path, engine: Path, tmp_path: Path) -> None:
    tactics = json.loads(precast("inspect", engine, "--json").done())["tactics"]
    lines = precast("inspect", engine).done().splitlines()
    assert any(line.lstrip().startswith("shape ") and line.endswith("64 rows") for line in lines)
    for shape, row in tactics["shapes"].items():
        (shown,) = (line for line in lines if line.lstrip().startswith(shape + "  "))
        assert shown.count(" us ") == shown.count("%") == len(row["seconds"]) > 1
    precast("build", checkpoint, "--output-dir", tmp_path / "untimed", "--optimization-level", 0).done()
    assert "tactics: none" in precast("inspect", tmp_path / "untimed").done().splitlines()
    assert "4 is not in the range" in precast(
        "build", checkpoint, "--output-dir", tmp_path / "x", "--optimization-level", 4
    ).failed(2)


def test_inspect_tells_why_a_model_would_be_refused(hf_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "strange"
    shutil.copytree(hf_folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"model_type": "lama"}))
    refused = json.loads(precast("inspect", copy, "--json").done())["refused"]
    assert "llama" in refused
    assert f"error: {refused}" == precast("convert", copy, "--output-dir", tmp_path / "x").failed(1)


def test_cache_lists_verifies_and_prunes(hf_folder: Path, tmp_path: Path) -> None:
    cache = {"PRECAST_CACHE": str(tmp_path)}
    assert json.loads(precast("cache", "ls", "--json", **cache).done())["engines"] == []
    precast("run", hf_folder, "the dog", *GREEDY, **cache).done()
    foreign = tmp_path / "engines" / "notes.txt"
    foreign.write_text("mine")
    (entry,) = json.loads(precast("cache", "ls", "--json", **cache).done())["engines"]
    assert entry["model"].startswith("LlamaForCausalLM, 2 layers of 96")
    assert entry["key"] in precast("cache", "ls", **cache).done()
    assert precast("cache", "verify", **cache).done().split() == [entry["key"], "ok"]

    weights = Path(entry["path"]) / "rank0.engine"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert precast("cache", "verify", **cache).code == 1

    precast("cache", "prune", "--max-size", "1G", **cache).done()
    assert Path(entry["path"]).exists()
    precast("cache", "prune", "--all", **cache).done()
    assert not Path(entry["path"]).exists()
    assert foreign.read_text() == "mine"


@pytest.mark.parametrize("line", ["/exit\n", "\x04"], ids=["exit", "Ctrl-D"])
def test_chat_remembers_until_reset(engine: Path, line: str) -> None:
    terminal = Terminal("chat", engine, *GREEDY)
    terminal.wait_for("/reset starts over")
    answers = []
    for text in ("the dog", "the dog", "/reset", "the dog"):
        terminal.wait_for("> ")
        before = len(terminal.text)
        terminal.type(text + "\n")
        terminal.wait_for(text)
        terminal.wait_for("\n")
        if text != "/reset":
            terminal.wait_for("\n")
            answers.append(terminal.text[before:].split("\n")[1])
    terminal.wait_for("> ")
    terminal.type(line)
    assert terminal.end() == 0
    assert answers[0] == answers[2]
    assert answers[0] != answers[1]


def test_chat_ctrl_c_stops_only_the_answer(engine: Path) -> None:
    terminal = Terminal("chat", engine, "--ignore-eos", "--temperature", 0)
    terminal.wait_for("> ")
    terminal.type("the dog\n")
    terminal.wait_for("the dog")
    terminal.wait_for("\n")
    terminal.wait_for_more(20)
    terminal.type("\x03")
    terminal.wait_for("> ")
    terminal.interrupt_prompt()  # with no answer under way it does nothing
    terminal.type("/exit\n")
    assert terminal.end() == 0


def test_chat_reads_lines_from_a_pipe(engine: Path) -> None:
    done = precast("chat", engine, *GREEDY, stdin="the dog\n\n/nothing\n/reset\nthe dog\n")
    first, second = done.done().splitlines()
    assert first == second
    assert done.err.startswith("there is no /nothing")  # and no greeting
    assert "there is no /nothing" in done.err
