"""Configs of models and checkpoints with values of any kind: each is used or refused in one sentence."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from precast.builder import BuildOptions, build
from precast.errors import BuildError, CheckpointError, PrecastError, SourceError
from precast.quantize import convert
from tests.tiny import tiny_llama

INF, NAN = float("inf"), float("nan")
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    5,
    1 << 40,
    10**400,
    1e-300,
    1e300,
    INF,
    NAN,
    "",
    "x",
    [],
    [1],
    {},
    {"a": 1},
)

SOURCE_CHANGES: dict[str, Any] = {
    "NaN in a harmless key": {"initializer_range": NAN},
    "infinity further down": {"id2label": {"a": [INF]}},
    "architectures of a number": {"architectures": 5},
    "model_type of a list": {"model_type": []},
    "model_type of an object": {"model_type": {}},
}

CHECKPOINT_CHANGES: dict[str, Any] = {
    "scaling of a list": {"rotary_scaling": [1]},
    "factor of a text": {"rotary_scaling": {"type": "dynamic", "factor": "2"}},
    "infinite factor": {"rotary_scaling": {"type": "dynamic", "factor": INF}},
    "factor 0": {"rotary_scaling": {"type": "linear", "factor": 0}},
    "epsilon of a text": {"norm_epsilon": "1e-5"},
    "no epsilon": {"norm_epsilon": None},
    "negative base": {"rotary_base": -1},
    "excluded number": {"quantization": {"exclude_modules": [5]}},
    "two ranks": {"mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1}},
    "another activation": {"hidden_act": "tanhshrink"},
    "flag of a text": {"tie_word_embeddings": "no"},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("configs")
    tiny_llama(folder / "hf")
    convert(folder / "hf", folder / "checkpoint")
    return folder


def changed(folder: Path, target: Path, change: dict[str, Any]) -> Path:
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_bytes()) | change
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize("case", SOURCE_CHANGES)
def test_a_damaged_model_config_is_refused(case: str, made: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="hf"):
        convert(changed(made / "hf", tmp_path / "hf", SOURCE_CHANGES[case]), tmp_path / "out")


def test_a_lone_surrogate_in_a_config_is_kept(made: Path, tmp_path: Path) -> None:
    convert(changed(made / "hf", tmp_path / "hf", {"_name_or_path": "\ud800"}), tmp_path / "checkpoint")
    build(tmp_path / "checkpoint", tmp_path / "engine")
    found = json.loads((tmp_path / "engine" / "config.json").read_text(encoding="utf-8"))
    assert found["pretrained_config"]["pretrained_config"]["_name_or_path"] == "\ud800"


def test_a_huge_config_is_not_read(made: Path, tmp_path: Path) -> None:
    folder = changed(made / "hf", tmp_path / "hf", {"id2label": {str(i): "x" * 90 for i in range(50_000)}})
    with pytest.raises(SourceError, match="not a config"):
        convert(folder, tmp_path / "out")


@pytest.mark.parametrize("case", CHECKPOINT_CHANGES)
def test_a_damaged_checkpoint_config_is_refused(case: str, made: Path, tmp_path: Path) -> None:
    folder = changed(made / "checkpoint", tmp_path / "checkpoint", CHECKPOINT_CHANGES[case])
    with pytest.raises(CheckpointError, match=r"config\.json"):
        build(folder, tmp_path / "engine")


@pytest.mark.parametrize(
    "key", ["rotary_scaling", "rotary_base", "norm_epsilon", "quantization", "mapping", "hidden_act"]
)
def test_any_value_in_a_checkpoint_config_is_used_or_refused(key: str, made: Path, tmp_path: Path) -> None:
    for number, value in enumerate(VALUES):
        folder = changed(made / "checkpoint", tmp_path / str(number), {key: value})
        with contextlib.suppress(PrecastError):
            build(folder, tmp_path / "engine", BuildOptions(max_seq_len=64))


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "yarn", "factor": 2.0},  # with base 1, whose logarithm is 0
        {"type": "dynamic", "factor": 1e29},
        {"type": "linear", "factor": 1e-45},
    ],
)
def test_rope_without_finite_frequencies_is_refused(scaling: dict[str, Any], made: Path, tmp_path: Path) -> None:
    base = 1.0 if scaling["type"] == "yarn" else 10000.0
    change = {"rotary_scaling": scaling, "rotary_base": base}
    with pytest.raises(BuildError, match="no finite frequencies"):
        build(changed(made / "checkpoint", tmp_path / "checkpoint", change), tmp_path / "engine")
