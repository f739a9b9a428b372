"""`precast eval` on a tiny model in every form."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from precast.builder.engine_file import EngineFile
from tests.e2e.command_line import precast
from tests.tiny import tiny_chat_model

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on in the sun\n" * 20


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(TEXT)
    return path


def test_perplexity_of_every_form_is_of_the_same_tokens(
    hf_folder: Path, checkpoint: Path, engine: Path, text: Path
) -> None:
    given = ("--text", text, "--window", 64, "--max-windows", 3)
    found = [
        json.loads(precast("eval", "perplexity", m, *given, "--json").done()) for m in (hf_folder, checkpoint, engine)
    ]
    for each in found:
        assert (each["windows"], each["tokens"], each["begins_with"]) == (3, 3 * 63, [])
        assert each["perplexity"] == pytest.approx(math.exp(each["nats_per_token"]))
        assert each["seconds"] > 0
    assert found[1]["nats_per_token"] == found[2]["nats_per_token"] != found[0]["nats_per_token"]
    assert found[2]["nats_per_token"] == pytest.approx(found[0]["nats_per_token"], rel=0.05)
    assert [each["runs_on"].split(",")[0] for each in found] == ["transformers", "engine", "engine"]
    shown = precast("eval", "perplexity", engine, *given, "--num-threads", 1).done()
    assert f"perplexity {found[2]['perplexity']:,.4g}" in shown
    assert "189 tokens predicted in 3 windows of 64" in shown


def test_comparison_tells_divergences_worst_positions_and_answers(hf_folder: Path, engine: Path, text: Path) -> None:
    given = ("eval", "compare", hf_folder, engine, "--text", text, "--window", 64, "--worst", 2, "--prompts", 3)
    found = json.loads(precast(*given, "--json").done())
    assert 0 < found["kl_median"] <= found["kl_p99"] <= found["kl_max"] == found["worst"][0]["kl"]
    assert 0 <= found["top1_agreement"] <= 1
    assert len(found["worst"]) == 2
    assert len(found["divergences"]) == 3
    assert found["a"]["runs_on"] == "transformers, float32"
    perplexity = json.loads(precast("eval", "perplexity", engine, "--text", text, "--window", 64, "--json").done())
    assert found["nats_per_token_b"] == pytest.approx(perplexity["nats_per_token"], rel=1e-12)
    shown = precast(*given).done()
    assert "worst positions" in shown
    assert "greedy answers to 3 prompts" in shown
    again = precast("eval", "compare", engine, engine, "--text", text, "--window", 64, "--prompts", 2).done()
    assert "same token most likely at 100.00%" in again
    assert again.count("  equal: ") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("perplexity", "ENGINE"), 2, "--text"),
        (("perplexity", "ENGINE", "--text", "TEXT", "--window", "1"), 2, "--window"),
        (("compare", "ENGINE", "--text", "TEXT"), 2, "'B'"),
        (("perplexity", "missing", "--text", "TEXT"), 1, "missing does not exist"),
        (("perplexity", "ENGINE", "--text", "missing"), 1, "missing does not exist"),
        (("perplexity", "ENGINE", "--text", "HF"), 1, "is not a file"),
        (("perplexity", "ENGINE", "--text", "HF/model.safetensors"), 1, "is not UTF-8 text"),
        (("perplexity", "ENGINE", "--text", "SHORT"), 1, "too few tokens"),
        (("perplexity", "SMALL", "--text", "TEXT"), 1, "holds 64 tokens in a sequence, and this asks for 380"),
        (("perplexity", "HF", "--text", "LONG", "--window", "8193"), 1, "has positions for 8192 tokens"),
        (("perplexity", "DAMAGED", "--text", "TEXT"), 1, "rank0.engine"),
        (("compare", "ENGINE", "OTHER", "--text", "TEXT"), 1, "only models of one tokenizer can be compared"),
        (("compare", "HF", "LARGER", "--text", "TEXT"), 1, "only models of one vocabulary can be compared"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    arguments: tuple[str, ...], code: int, says: str, stand: dict[str, Path]
) -> None:
    def replaced(name: str) -> str:
        head, slash, tail = name.partition("/")
        return f"{stand[head]}{slash}{tail}" if head in stand else name

    assert says in precast("eval", *map(replaced, arguments)).failed(code)


@pytest.fixture(scope="module")
def stand(
    hf_folder: Path, checkpoint: Path, engine: Path, text: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """What the cases name."""
    folder = tmp_path_factory.mktemp("stand")
    names = {"HF": hf_folder, "ENGINE": engine, "TEXT": text}
    names |= {name: folder / name.lower() for name in ("SHORT", "LONG", "SMALL", "DAMAGED", "OTHER", "LARGER")}
    names["SHORT"].write_text("x")
    names["LONG"].write_text(TEXT * 50)
    precast("build", checkpoint, "--output-dir", names["SMALL"], "--max-seq-len", 64, "--max-batch-size", 4).done()
    shutil.copytree(engine, names["DAMAGED"])
    file = names["DAMAGED"] / "rank0.engine"
    file.write_bytes(file.read_bytes()[:-1])
    shutil.copytree(engine, names["OTHER"])
    tokenizer = json.loads((engine / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (names["OTHER"] / "tokenizer.json").write_text(json.dumps(tokenizer))
    tiny_chat_model(names["LARGER"], vocab_size=384)
    return names


def test_without_transformers_a_folder_is_refused_and_an_engine_measured(
    hf_folder: Path, engine: Path, text: Path
) -> None:
    script = "import sys; sys.modules['torch'] = None; from precast.__main__ import main; main()"

    def run(model: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, "eval", "perplexity", str(model), "--text", str(text)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    refused = run(hf_folder)
    assert refused.returncode == 1
    assert "with the extra `convert`" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert run(engine).returncode == 0


def test_logits_that_are_not_finite_are_refused(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    from precast.builder import BuildOptions, build

    build(checkpoint, tmp_path / "engine", BuildOptions(max_batch_size=4))
    path = tmp_path / "engine" / "rank0.engine"
    section = EngineFile.open(path).sections["lm_head.scale"]
    with open(path, "r+b") as file:
        file.seek(section.offset)
        file.write(b"\xff" * 4)  # a NaN
    found = precast("eval", "perplexity", tmp_path / "engine", "--text", text)
    assert "gives logits that are not finite" in found.failed(1)
