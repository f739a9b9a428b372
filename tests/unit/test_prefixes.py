"""Prefixes that were computed at build time: the first request finds them, and its bits are those of computing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from precast.builder import BuildOptions
from precast.builder.engine_file import EngineFile
from precast.errors import BuildError, EngineError
from precast.pipeline import LLM, build
from precast.prefixes import CONTINUATIONS, Prefix
from precast.quantize import ConvertOptions, convert
from precast.runtime.request_options import RequestOptions
from precast.runtime.sampling import SamplingParams
from precast.runtime.text.tokenizer import Tokenizer
from tests.tiny import tiny_chat_model

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on in the sun. " * 8
OTHER = TEXT[:200] + "quick foxes sleep in the sun and the lazy dogs jump over them again and again. " * 4
CHAT = [{"role": "system", "content": "you are the quick brown fox who answers in the sun. " * 4}]
PREFIXES = [Prefix("text", TEXT), Prefix("other", OTHER), Prefix("chat", CHAT)]
SAMPLED = SamplingParams(max_tokens=12, temperature=1.0, seed=5, logprobs=2, ignore_eos=True)

LLAMA_ONLY = ("attention_bias", "mlp_bias", "pretraining_tp")

KINDS = {
    "float32": ({}, "auto"),
    "window": ({"sliding_window": 48, "model_type": "mistral", "architectures": ["MistralForCausalLM"]}, "auto"),
    "int8_kv": ({}, "int8"),
}


def make_checkpoint(folder: Path, changes: dict[str, object] | None = None) -> Path:
    tiny_chat_model(folder / "hf")
    config = json.loads((folder / "hf" / "config.json").read_text()) | (changes or {})
    if config["model_type"] == "mistral":
        config = {key: value for key, value in config.items() if key not in LLAMA_ONLY}
    (folder / "hf" / "config.json").write_text(json.dumps(config))
    convert(folder / "hf", folder / "ckpt", ConvertOptions())
    return folder / "ckpt"


@pytest.fixture(scope="module", params=KINDS)
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[int]]:
    """(with prefixes, without, tokens of each prefix that are ready)."""
    folder = tmp_path_factory.mktemp(request.param)
    changes, kv = KINDS[request.param]
    checkpoint = make_checkpoint(folder, dict(changes))
    options = BuildOptions(max_batch_size=4, max_num_tokens=64, max_seq_len=1024, kv_cache_dtype=kv)
    ready = build(checkpoint, folder / "with", options, prefixes=PREFIXES)
    build(checkpoint, folder / "without", options)
    return folder / "with", folder / "without", ready


def test_the_first_request_finds_its_prefix_and_gives_the_same_bits(engines: tuple[Path, Path, list[int]]) -> None:
    ready_made, plain, ready = engines
    prompts = [TEXT + " what now", OTHER + "and then", [*CHAT, {"role": "user", "content": "the dog"}]]
    for prompt, tokens in zip(prompts, ready, strict=True):
        with LLM(ready_made) as llm:
            found = llm.generate([prompt], SAMPLED)[0]
        with LLM(plain) as llm:
            computed = llm.generate([prompt], SAMPLED)[0]
        assert (found.usage.cached_tokens, computed.usage.cached_tokens) == (tokens, 0)
        assert (found.token_ids, found.logprobs) == (computed.token_ids, computed.logprobs)


def test_a_prompt_that_parts_from_a_prefix_uses_what_is_common(engines: tuple[Path, Path, list[int]]) -> None:
    ready_made, plain, ready = engines
    prompt = TEXT[: len(TEXT) // 2] + "something else altogether"
    with LLM(ready_made) as llm, LLM(plain) as other:
        found, computed = llm.generate([prompt], SAMPLED)[0], other.generate([prompt], SAMPLED)[0]
    # A window's pages before the end of a prefix are cached as any are, and may have been needed for another.
    assert 0 <= found.usage.cached_tokens < ready[0]
    assert (found.token_ids, found.logprobs) == (computed.token_ids, computed.logprobs)


def test_prefixes_outlive_everything_else(engines: tuple[Path, Path, list[int]]) -> None:
    ready_made, _, ready = engines
    with LLM(ready_made, max_batch_size=1) as llm:
        for i in range(40):
            llm.generate([[(7 * i + j) % 300 + 6 for j in range(900)]], SamplingParams(max_tokens=1))
        assert llm.generate([TEXT + " what now"], SAMPLED)[0].usage.cached_tokens == ready[0]


def test_a_salt_or_no_caching_keeps_requests_from_prefixes(engines: tuple[Path, Path, list[int]]) -> None:
    ready_made, _, _ = engines
    with LLM(ready_made) as llm:
        salted = llm.generate([TEXT + " what now"], SAMPLED, options=RequestOptions(cache_salt="mine"))[0]
    with LLM(ready_made, enable_prefix_caching=False) as llm:
        assert llm.generate([TEXT + " what now"], SAMPLED)[0].usage.cached_tokens == 0
    assert salted.usage.cached_tokens == 0


def test_pages_that_prefixes_share_are_stored_once(engines: tuple[Path, Path, list[int]]) -> None:
    ready_made, plain, ready = engines
    with LLM(plain) as llm:
        sizes = [group.page_bytes for group in llm.limits.groups]
    tokenizer = Tokenizer.from_folder(plain)
    text, other = tokenizer.encode(TEXT), tokenizer.encode(OTHER)
    shared = next(i for i in range(len(text)) if text[i] != other[i]) // 32
    assert shared > 0
    section = EngineFile.open(ready_made / "rank0.engine").sections["prefixes"]
    pages = sum(ready) // 32 - shared
    assert 0 <= section.length - pages * sum(sizes) < 4096 * (1 + len(sizes))
    assert not list(EngineFile.open(ready_made / "rank0.engine").damage())
    assert [p["num_tokens"] for p in json.loads((ready_made / "config.json").read_text())["prefixes"]] == ready
    identities = [json.loads((e / "config.json").read_text()) for e in (ready_made, plain)]
    assert identities[0]["numerics_id"] == identities[1]["numerics_id"]
    assert identities[0]["build_id"] != identities[1]["build_id"]


def test_a_pool_that_does_not_hold_the_prefixes_is_refused(engines: tuple[Path, Path, list[int]]) -> None:
    with LLM(engines[0]) as llm:
        pages = sum(group.page_bytes for group in llm.limits.groups)
    for kv_cache_memory in (2 * pages, sum(engines[2]) // 32 // 2 * pages):
        with pytest.raises(EngineError, match="KV"):
            LLM(engines[0], kv_cache_memory=kv_cache_memory)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("prefixes"))


def test_tokens_that_a_following_text_changes_are_held_back(checkpoint: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(checkpoint)
    base = "the dog sleeps on in the sun. " * 20
    # Cut where the last token is exactly a page's, and would merge with what may follow: "qui" + "ck".
    ends = [n for n in range(200, len(base)) if len(tokenizer.encode(base[:n])) % 32 == 0]
    cuts = [
        n
        for n in ends
        if any(
            tokenizer.encode(base[:n]) != tokenizer.encode(base[:n] + c)[: len(tokenizer.encode(base[:n]))]
            for c in CONTINUATIONS
        )
    ]
    assert cuts
    text = base[: cuts[0]]
    (ready,) = build(checkpoint, tmp_path / "engine", BuildOptions(max_seq_len=512), prefixes=[Prefix("cut", text)])
    assert ready == len(tokenizer.encode(text)) - 32


REFUSED = {
    "short": (Prefix("p", "the dog"), "the prefix p has . tokens to reuse; a KV page holds 32"),
    "long": (Prefix("p", TEXT * 8), r"the prefix p has \d+ tokens; max_seq_len is 512"),
    "template": (Prefix("p", [{"role": "system"}]), "the prefix p"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_prefixes_that_cannot_work_are_refused(name: str, checkpoint: Path, tmp_path: Path) -> None:
    prefix, message = REFUSED[name]
    with pytest.raises(BuildError, match=message):
        build(checkpoint, tmp_path / "engine", BuildOptions(max_seq_len=512), prefixes=[prefix])
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_without_tokenizer_takes_no_prefixes(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "ckpt")
    (tmp_path / "ckpt" / "tokenizer.json").unlink()
    with pytest.raises(BuildError, match="no tokenizer"):
        build(tmp_path / "ckpt", tmp_path / "engine", prefixes=[Prefix("p", TEXT)])


@pytest.mark.parametrize(
    ("data", "messages", "says"),
    [
        (b"[", True, "is not JSON"),
        (b"[1]", True, "not a list of messages"),
        (b"\xff\xfe", False, "is not UTF-8 text"),
        (b"[" * 100_000, True, "is not JSON"),
    ],
)
def test_prefix_files_that_are_none_are_refused(data: bytes, messages: bool, says: str, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(data)
    with pytest.raises(BuildError, match=says):
        Prefix.read(tmp_path / "p", messages)
    with pytest.raises(BuildError, match="cannot be read"):
        Prefix.read(tmp_path / "absent", messages)
