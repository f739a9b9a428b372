"""Hostile checkpoints and engines."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from precast.builder.engine_file import CHECKSUM_BLOCK, MAGIC
from tests.hostile.changes import (
    GIB,
    JSON_TEXTS,
    LOOP,
    TEMPLATE,
    Change,
    Hostile,
    bomb,
    both,
    file,
    keys,
    late,
    link,
    pipe,
    sparse,
    without,
)
from tests.hostile.models import config
from tests.hostile.texts import SLOW, split

CHECKPOINTS: dict[str, Hostile] = {
    **{f"config: {kind}": Hostile(file("config.json", data), "config.json") for kind, data in JSON_TEXTS.items()},
    "ten thousand layers": Hostile(config(num_hidden_layers=10_000), "layers"),
    "a thousand experts in many layers": Hostile(
        config(
            num_hidden_layers=20,
            moe={
                "num_experts": 1024,
                "num_experts_per_tok": 1,
                "intermediate_size": 8,
                "norm_topk_prob": True,
                "layers": list(range(20)),
            },
        ),
        "lacks the tensor",
    ),
    "layers of experts, a million times": Hostile(
        config(
            moe={
                "num_experts": 2,
                "num_experts_per_tok": 1,
                "intermediate_size": 8,
                "norm_topk_prob": True,
                "layers": [0] * 600_000,
            }
        ),
        "lacks the tensor",
    ),
    "key that is not known": Hostile(config(**{"\x1b[2J\n": 1}), "unknown keys"),
    "key of a megabyte": Hostile(config(**{"k" * (1 << 20): 1}), "unknown keys"),
    "weights that are a pipe": Hostile(pipe("rank0.safetensors"), "not a regular file"),
    "weights that are a device": Hostile(link("rank0.safetensors", "/dev/zero"), "not a regular file"),
    "weights of a terabyte of nothing": Hostile(
        both(file("rank0.safetensors", b""), sparse("rank0.safetensors", 1 << 40)), "rank0.safetensors"
    ),
    "tokenizer with loops in loops": Hostile(split("(a+)+b"), SLOW, works=("inspect",)),
}


def sections(*entries: tuple[str, str, int, int], size: int, content: bytes = b"") -> Change:
    """rank0.engine of a file `size` with holes, whose section table is right: name, tag, offset, length of each."""
    table = b""
    for name, tag, offset, length in entries:
        blocks = -(-length // CHECKSUM_BLOCK)
        head = struct.pack("<H", len(name)) + name.encode() + struct.pack("<H", len(tag)) + tag.encode()
        checksums = [zlib.crc32(bytes(min(CHECKSUM_BLOCK, length - i * CHECKSUM_BLOCK))) for i in (0, blocks - 1)]
        numbers = [checksums[0]] * max(0, blocks - 1) + checksums[1:] * min(1, blocks)
        table += head + struct.pack(f"<QQI{blocks}I", offset, length, CHECKSUM_BLOCK, *numbers)
    fixed = struct.pack("<8sIIQQQI16x", MAGIC, 0, len(entries), size + len(table), size, len(table), zlib.crc32(table))
    data = fixed + struct.pack("<I", zlib.crc32(fixed))

    def change(folder: Path) -> None:
        path = folder / "rank0.engine"
        path.write_bytes(data)
        with path.open("r+b") as out:
            out.seek(entries[0][2])
            out.write(content)
            out.seek(size)
            out.write(table)

    return change


ENGINES: dict[str, Hostile] = {
    **{f"config: {kind}": Hostile(file("config.json", data), "") for kind, data in JSON_TEXTS.items()},
    "config of 60 megabytes": Hostile(file("config.json", bomb), ""),
    "engine that is a pipe": Hostile(pipe("rank0.engine"), "rank0.engine"),
    "engine that is a device": Hostile(link("rank0.engine", "/dev/zero"), "rank0.engine"),
    "engine of a terabyte of nothing": Hostile(sparse("rank0.engine", 1 << 40, b""), "rank0.engine"),
    "plan of a hundred gigabytes of nothing": Hostile(
        late(lambda: sections(("plan", "plan.v0", 1 << 20, 100 * GIB), size=101 * GIB)), "its plan takes"
    ),
    "section of a terabyte without a plan": Hostile(
        late(lambda: sections(("weights", "vector.f32", 4 << 20, 1 << 40), size=2 << 40)), "plan"
    ),
    "plan that counts too much": Hostile(sections(("plan", "plan.v0", 4096, 4), size=5000, content=b""), "damaged"),
    "tokenizer with loops in loops": Hostile(split("(a+)+b"), SLOW, works=("inspect",)),
    "tokenizer that is gone": Hostile(without("tokenizer.json"), "no tokenizer", works=("inspect",)),
    "template that loops": Hostile(file(TEMPLATE, LOOP), "loop for ever", works=("inspect",)),
    "template that is a pipe": Hostile(
        pipe("additional_chat_templates/a.jinja"), "not a regular file", works=("inspect",)
    ),
    "generation config of 60 megabytes": Hostile(
        file("generation_config.json", bomb), "generation_config.json", works=("inspect",)
    ),
    "temperature of 2^5000": Hostile(
        keys("generation_config.json", do_sample=True, temperature=2**5000), "temperature", works=("inspect",)
    ),
    "end token of 2^40": Hostile(
        keys("generation_config.json", eos_token_id=2**40), "eos_token_id", works=("inspect",)
    ),
}
