"""Hub ids: fetched once, only what is needed, refused before weights come; folders go before them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from tests.e2e.command_line import precast
from tests.e2e.hub_server import Hub, serve
from tests.tiny import tiny_llama

ID = "org/tiny-llama"


@pytest.fixture(scope="module")
def repos(hf_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    root = tmp_path_factory.mktemp("hub")
    main = Path(shutil.copytree(hf_folder, root / "main"))
    for name in ("pytorch_model.bin", "modeling_tiny.py", "README.md", "onnx/model.onnx", "consolidated.safetensors"):
        (main / name).parent.mkdir(exist_ok=True)
        (main / name).write_bytes(b"not wanted")
    LlamaForCausalLM.from_pretrained(hf_folder).save_pretrained(root / "shards", max_shard_size="200KB")
    tiny_llama(root / "second", seed=1)
    found = {ID: {"main": main, "v2": root / "second"}, "org/shards": {"main": root / "shards"}}

    def broken(name: str, config: dict[str, Any] | None, *files: str) -> None:
        folder = root / name
        folder.mkdir()
        for file in files:
            (folder / file).write_bytes(b"x")
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        found[f"org/{name}"] = {"main": folder}

    llama = json.loads((main / "config.json").read_text())
    broken("rwkv", {"model_type": "rwkv"}, "model.safetensors")
    broken("odd", llama | {"attention_temperature": 3}, "model.safetensors")
    broken("pickles", llama, "pytorch_model.bin")
    broken("ggufs", None, "tiny.Q4_K_M.gguf")
    broken("lora", None, "adapter_config.json", "adapter_model.safetensors")
    broken("pictures", None, "model_index.json")
    broken("gptq", llama | {"quantization_config": {"quant_method": "gptq"}}, "model.safetensors")
    broken("gated", llama, "model.safetensors")
    return found


@pytest.fixture
def hub(repos: dict[str, dict[str, Path]]) -> Iterator[Hub]:
    with serve(repos) as hub:
        hub.gated.add("org/gated")
        yield hub


def weights(folder: Path) -> bytes:
    return (folder / "rank0.safetensors").read_bytes()


def test_a_hub_id_converts_as_its_folder_and_only_what_is_needed_comes(
    hub: Hub, hf_folder: Path, tmp_path: Path
) -> None:
    environment = hub.environment(tmp_path / "home")
    precast("convert", ID, "--output-dir", tmp_path / "a", **environment).done()
    precast("convert", hf_folder, "--output-dir", tmp_path / "b").done()
    for path in (tmp_path / "b").iterdir():
        assert (tmp_path / "a" / path.name).read_bytes() == path.read_bytes()
    wanted = {path.name for path in hf_folder.iterdir()}
    assert set(hub.fetched) == wanted & set(hub.fetched)
    assert "model.safetensors" in hub.fetched
    assert len(hub.fetched) == len(set(hub.fetched))
    hub.fetched.clear()
    precast("convert", ID, "--output-dir", tmp_path / "a", **environment).done()
    assert hub.fetched == []  # the second time, from the cache


def test_shards_are_fetched_by_the_index(hub: Hub, hf_folder: Path, tmp_path: Path) -> None:
    precast("convert", "org/shards", "--output-dir", tmp_path / "a", **hub.environment(tmp_path / "home")).done()
    precast("convert", hf_folder, "--output-dir", tmp_path / "b").done()
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert sum(name.endswith(".safetensors") for name in hub.fetched) > 2


def test_a_second_run_needs_no_hub_and_the_cache_knows_contents_not_names(
    hub: Hub, hf_folder: Path, tmp_path: Path
) -> None:
    environment = hub.environment(tmp_path / "home") | {"PRECAST_CACHE": str(tmp_path / "cache")}
    options = ("the quick", "--max-tokens", 5, "--temperature", 0, "--ignore-eos")
    answer = precast("run", ID, *options, **environment).done()
    offline = environment | {"HF_HUB_OFFLINE": "1"}
    assert precast("run", ID, *options, **offline).done() == answer
    assert precast("run", hf_folder, *options, **environment).done() == answer
    unreachable = environment | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert precast("run", ID, *options, **unreachable).done() == answer
    assert len(list((tmp_path / "cache" / "engines").iterdir())) == 1


def test_a_revision_is_what_it_names(hub: Hub, repos: Any, tmp_path: Path) -> None:
    environment = hub.environment(tmp_path / "home")
    precast("convert", ID, "--revision", "v2", "--output-dir", tmp_path / "a", **environment).done()
    precast("convert", repos[ID]["v2"], "--output-dir", tmp_path / "b").done()
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    commit = hub.find(ID, "main")
    assert commit is not None
    found = json.loads(precast("inspect", ID, "--revision", commit[0], "--json", **environment).done())
    assert found["model_type"] == "llama"


REFUSED = {
    "org/rwkv": "model_type 'rwkv' is not supported",
    "org/odd": "attention_temperature",
    "org/pickles": "pickles",
    "org/ggufs": "tiny.Q4_K_M.gguf",
    "org/lora": "adapter",
    "org/pictures": "diffusers",
    "org/gptq": "already quantized (gptq)",
    "org/gated": "hf auth login",
    "org/nowhere": "there is no org/nowhere here, and none at http",
    "org/tiny--llama": "org/tiny--llama",
}


@pytest.mark.parametrize("model", REFUSED)
def test_what_cannot_be_converted_is_refused_before_its_weights_come(model: str, hub: Hub, tmp_path: Path) -> None:
    told = precast("convert", model, "--output-dir", tmp_path / "x", **hub.environment(tmp_path / "home")).failed()
    assert REFUSED[model] in told
    assert not [name for name in hub.fetched if name.endswith((".safetensors", ".bin", ".gguf"))]


def test_a_revision_that_is_not_there_is_named(hub: Hub, tmp_path: Path, hf_folder: Path) -> None:
    environment = hub.environment(tmp_path / "home")
    assert "has no revision v9" in precast("inspect", ID, "--revision", "v9", **environment).failed()
    assert "revision v9" in precast("inspect", hf_folder, "--revision", "v9", **environment).failed()


@pytest.mark.parametrize(
    ("setting", "value", "word"),
    [("HF_HUB_OFFLINE", "1", "HF_HUB_OFFLINE is set"), ("HF_ENDPOINT", "http://127.0.0.1:9", "cannot be reached")],
)
def test_without_a_hub_the_sentence_says_what_to_do(
    setting: str, value: str, word: str, hub: Hub, tmp_path: Path
) -> None:
    environment = hub.environment(tmp_path / "home") | {setting: value}
    told = precast("run", ID, "hi", **environment).failed()
    assert word in told
    assert f"hf download {ID} --local-dir tiny-llama" in told


def test_without_the_library_the_sentence_names_the_extra(tmp_path: Path) -> None:
    script = "import sys; sys.modules['huggingface_hub'] = None; from precast.__main__ import main; main()"
    command = [sys.executable, "-c", script, "run", ID, "hi"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 1
    assert "pip install 'precast[hub]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_goes_before_a_hub_and_a_typo_is_told(
    hub: Hub, hf_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(hf_folder, tmp_path / ID)
    environment = hub.environment(tmp_path / "home")
    precast("inspect", ID, **environment).done()
    assert f"did you mean {ID}?" in precast("inspect", "org/tiny-lama", **environment).failed()
    assert "the folder org is here" in precast("inspect", "org/shards", **environment).failed()
    assert hub.asked == []
