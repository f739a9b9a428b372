"""Engines that will not load: each says what is wrong in one sentence, which names the op where an op is wrong."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from precast._native import runtime
from precast.builder.engine_file import EngineFile, EngineWriter
from precast.builder.plan import Buffer, Plan, PlanOp
from precast.errors import EngineError
from tests.steps import Steps, make_engine
from tests.tiny import VOCAB, tiny_llama
from tests.unit import test_moe, test_plan_attention
from tests.unit.plans import Program


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A small int8 engine's file."""
    folder = tmp_path_factory.mktemp("refusals")
    tiny_llama(folder / "hf", attention_bias=True)
    return make_engine(folder / "hf", folder, {"quant": "int8"}, max_num_tokens=64, max_seq_len=256) / "rank0.engine"


def rewritten(good, path, change_plan=None, tags=None, cut=None, drop=()):
    """A copy of the file with another plan, other tags (section → tag), or shorter sections (section → bytes cut)."""
    source = EngineFile.open(good)
    content = {name: bytes(source.bytes(name)) for name in source.sections if name not in drop}
    if change_plan is not None:
        content["plan"] = change_plan(Plan.from_bytes(content["plan"])).to_bytes()
    for name, size in (cut or {}).items():
        content[name] = content[name][:-size]
    writer = EngineWriter(
        path, [(n, (tags or {}).get(n, source.sections[n].tag), len(data)) for n, data in content.items()]
    )
    for name, data in content.items():
        writer.add(name, data)
    writer.close()
    return path


def attribute(**changes):
    return lambda plan: replace(
        plan, attributes={k: v for k, v in (plan.attributes | changes).items() if v is not None}
    )


def op(of_kernel, **changes):
    """Changes the first op of a kernel: `inputs`, `outputs`, `weights`, `kernel`, or attributes (None: removed)."""

    def change(plan):
        ops = list(plan.ops)
        i = next(i for i, o in enumerate(ops) if o.kernel == of_kernel)
        fields = {k: v for k, v in changes.items() if k in ("inputs", "outputs", "weights", "kernel")}
        attributes = ops[i].attributes | {k: v for k, v in changes.items() if k not in fields}
        ops[i] = replace(ops[i], **fields, attributes={k: v for k, v in attributes.items() if v is not None})
        return replace(plan, ops=tuple(ops))

    return change


def buffer(number, **changes):
    def change(plan):
        buffers = list(plan.buffers)
        buffers[number] = replace(buffers[number], **changes)
        return replace(plan, buffers=tuple(buffers))

    return change


OTHER_ISA = {"avx2": "avx512", "avx2_vnni": "avx2", "avx512": "avx2"}

PLANS = {
    "no isa": (attribute(isa=None), "isa is missing"),
    "no layers": (attribute(num_layers=0), "num_layers is 0"),
    "text for a number": (attribute(num_heads="four"), "num_heads is not an integer"),
    "head ratio": (attribute(num_kv_heads=3), "num_heads is no multiple"),
    "kv dtype": (attribute(kv_cache_dtype="int2"), "kv_cache_dtype int2"),
    "huge step": (attribute(max_num_tokens=1 << 40), "max_num_tokens"),
    "batch over tokens": (attribute(max_batch_size=65), "max_batch_size is 65"),
    "other vocabulary": (attribute(vocab_size=VOCAB + 16), "does not write logits"),
    "unknown kernel": (op("embed", kernel="teleport"), r"op 0 \(teleport → embed\): this precast has no kernel"),
    "embed with input": (op("embed", inputs=(1,)), r"op \d+ \(\w+ → .*reads buffer"),
    "embed without table": (op("embed", weights=()), r"op 0 \(embed → embed\): it has no table"),
    "missing section": (op("embed", weights=("nothing",)), "no section nothing"),
    "negative epsilon": (op("rms_norm", epsilon=-1.0), r"op 1 \(rms_norm .*epsilon is negative"),
    "infinite epsilon": (op("rms_norm", epsilon=float("inf")), "epsilon is not a finite number"),
    "norm without epsilon": (op("rms_norm", epsilon=None), "epsilon is missing"),
    "unknown epilogue": (op("linear", epilogue="gelu"), r"op 2 \(linear .*unknown epilogue gelu"),
    "gated of odd n": (op("linear", epilogue="gated", activation="silu", n=321), "even n"),
    "gated by nothing": (op("linear", epilogue="gated"), "activation is missing"),
    "unknown activation": (op("linear", epilogue="act", activation="softsign"), "no activation function softsign"),
    "wrong n": (op("linear", n=48), "the output is not f32"),
    "wrong k": (op("linear", k=97), "its input is not quantized of 97 columns"),
    "huge k": (op("linear", k=1 << 40), "k is 1099511627776, outside"),
    "bias that is not there": (op("linear", has_bias=0), "weights instead of"),
    "swapped weights": (op("linear", weights=("rope.inverse_frequencies",) * 3), r"vector\.f32, which avx\w+ kernels"),
    "layer outside": (op("rope_kv_append", layer=2), "layer is 2, outside 0 … 1"),
    "negative layer": (op("paged_attention", layer=-1), "layer is -1"),
    "attention without scale": (op("paged_attention", scale=None), "scale is missing"),
    "two outputs": (op("embed", outputs=(0, 0)), r"op 0 \(embed .*2 outputs instead of 1"),
    "output column": (buffer(0, columns=95), r"op 0 \(embed .*no table of rows of 95"),
    "group": (buffer(1, group=6), "no multiple of 4"),
    "unwritten input": (op("rms_norm", inputs=(9,)), r"op \d+ \(\w+ → .*reads buffer"),
    "no ops": (lambda plan: replace(plan, ops=()), "computes nothing"),
    "last op is no head": (lambda plan: replace(plan, ops=plan.ops[:-1]), "does not write logits"),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_that_does_not_fit_is_refused(good, tmp_path, name):
    change, match = PLANS[name]
    path = rewritten(good, tmp_path / "e", change)
    with pytest.raises(EngineError, match=match) as caught:
        runtime.Engine(path, 1)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_unchanged_copy_loads(good, tmp_path):
    engine = runtime.Engine(rewritten(good, tmp_path / "e", lambda plan: plan), 1)
    assert engine.limits.vocab_size == VOCAB
    assert engine.plan_attributes["num_layers"] == 2
    assert {s.name for s in engine.sections} >= {"plan", "transformer.vocab_embedding.weight"}
    assert engine.vocab is None


def test_weights_of_another_length_or_layout_are_refused(good, tmp_path):
    plan = Plan.from_bytes(bytes(EngineFile.open(good).bytes("plan")))
    linear = next(o for o in plan.ops if o.kernel == "linear")
    for i, name in enumerate(linear.weights):
        with pytest.raises(EngineError, match=re.escape(name)):
            runtime.Engine(rewritten(good, tmp_path / f"cut{i}", cut={name: 4}), 1)
        with pytest.raises(EngineError, match=re.escape(name)):
            runtime.Engine(rewritten(good, tmp_path / f"tag{i}", tags={name: "panel99.f8"}), 1)
        with pytest.raises(EngineError, match=re.escape(f"no section {name}")):
            runtime.Engine(rewritten(good, tmp_path / f"drop{i}", drop=(name,)), 1)


def test_an_engine_for_another_level_says_both(good, tmp_path):
    here = runtime.Engine(good, 1).plan_attributes["isa"]
    path = rewritten(good, tmp_path / "e", attribute(isa=OTHER_ISA[here]))
    with pytest.raises(EngineError, match=f"built for ISA {OTHER_ISA[here]} and this CPU runs {here}"):
        runtime.Engine(path, 1)


def test_files_that_are_none(tmp_path, good):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "short").write_bytes(good.read_bytes()[:-1])
    for name, match in (
        ("empty", "not an engine file"),
        ("text", "not an engine file"),
        ("short", "truncated or has grown"),
        ("none", "cannot be opened: No such file"),
    ):
        for memory in ("map", "copy"):
            with pytest.raises(EngineError, match=match):
                runtime.Engine(tmp_path / name, 1, memory)
    with pytest.raises(EngineError, match="weights_memory is 'huge'; it must be map or copy"):
        runtime.Engine(good, 1, "huge")
    with pytest.raises(EngineError, match="No such file"):
        runtime.Engine(tmp_path, 1)  # a folder without rank0.engine
    with pytest.raises(EngineError, match="num_threads"):
        runtime.Engine(good, -1)


def test_a_copied_engine_computes_the_same(good):
    tokens = list(range(5, 45))
    mapped, copied = (Steps(good, 2, weights_memory=memory).logits(tokens) for memory in ("map", "copy"))
    assert np.array_equal(mapped, copied)


def mutated(plan, rng):
    """A plan with a few things changed at random, to values that are likely to hurt."""
    numbers = [0, 1, 2, 3, 4, 16, 40, 64, 96, 97, 255, 320, 1 << 20, (1 << 26), (1 << 31) - 1, -1]
    buffers, ops, attributes = list(plan.buffers), list(plan.ops), dict(plan.attributes)
    for _ in range(rng.randint(1, 3)):
        match rng.randrange(5):
            case 0:
                i = rng.randrange(len(buffers))
                b = buffers[i]
                field = rng.choice(["dtype", "rows", "columns", "group", "slot"])
                values = {"dtype": ["f32", "i8"], "rows": ["T", "S"], "slot": range(len(buffers))}
                value = rng.choice(values.get(field, [abs(n) for n in numbers]))
                buffers[i] = Buffer(**{**vars(b), field: value})
            case 1:
                key = rng.choice([k for k in attributes if isinstance(attributes[k], int)])
                attributes[key] = rng.choice(numbers)
            case 2:
                i = rng.randrange(len(ops))
                inputs = tuple(rng.randrange(len(buffers)) for _ in range(rng.randrange(3)))
                outputs = tuple(rng.randrange(len(buffers)) for _ in range(rng.randrange(3)))
                change = rng.choice([{"inputs": inputs}, {"outputs": outputs}])
                ops[i] = replace(ops[i], **change)
            case 3:
                i, other = rng.randrange(len(ops)), rng.choice(ops)
                change = rng.choice([{"kernel": other.kernel}, {"weights": other.weights}])
                ops[i] = replace(ops[i], **change)
            case 4:
                i = rng.randrange(len(ops))
                changed = {k: rng.choice(numbers) if isinstance(v, int) else v for k, v in ops[i].attributes.items()}
                ops[i] = PlanOp(ops[i].kernel, ops[i].inputs, ops[i].outputs, ops[i].weights, changed)
    return Plan(attributes, tuple(buffers), tuple(ops))


@pytest.mark.parametrize("model", ["llama", "attention", "moe"])
def test_a_crafted_plan_is_refused_or_runs_inside_its_memory(good, tmp_path, model):
    rng = random.Random(0)
    if model == "attention":
        p, y = test_plan_attention.program(*test_plan_attention.CASES["all"])
        good = p.engine(tmp_path / "good", y)
    elif model == "moe":
        p = Program(test_moe.TABLE, max_num_tokens=64)
        good = p.engine(tmp_path / "good", test_moe.Layer("int8 groups", 8, True, True).add_to(p, 2, True))
    loaded = 0
    for i in range(400):
        (tmp_path / "e").unlink(missing_ok=True)
        path = rewritten(good, tmp_path / "e", lambda plan: mutated(plan, rng))
        try:
            engine = runtime.Engine(path, 1 + i % 2)
            limits = engine.limits
            if sum(g.page_bytes for g in limits.groups) > 1 << 26 or limits.vocab_size > 1 << 20:
                continue
            engine.allocate_pages(2)
        except EngineError:
            continue
        loaded += 1
        rows = min(33, limits.max_num_tokens, limits.max_seq_len)
        token = np.zeros(rows, np.int32)
        logits = engine.forward(token, np.array([[rows, 0]], np.int32), np.array([[1, 0]], np.int32), token[:1])
        assert logits.shape == (1, limits.vocab_size)
    assert loaded > 10  # some changes are harmless; that they run is part of the test
