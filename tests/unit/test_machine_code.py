"""The inner loops of linears and attention, as the compiler made them: no sum may live on the stack.

A compiler that keeps accumulators in memory halves the speed and changes no result, so only the machine code shows it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from bisect import bisect_left, bisect_right

import pytest

import precast._native
from precast._native import kernels

# Instruction of a level → how many of it the loop of its largest register tile holds at least.
DOT_PRODUCTS = {
    r"vpmaddubsw": 48,
    r"\{vex\} vpdpbusd .*%ymm": 12,
    r"vpdpbusd .*%zmm": 24,
    r"vdpbf16ps": 24,
    r"vpdpwssd": 24,
}

Instruction = tuple[int, str]  # address, text


@pytest.fixture(scope="module")
def machine_code() -> list[Instruction]:
    if shutil.which("objdump") is None:
        pytest.skip("objdump (binutils) is not installed")
    command = ["objdump", "-d", "--no-show-raw-insn", precast._native.__file__]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s*([0-9a-f]+):\s+(\S.*)$", text, re.MULTILINE)
    return [(int(address, 16), instruction) for address, instruction in found]


def loops_of(code: list[Instruction], operation: str) -> list[list[str]]:
    """The loops with an `operation` outside of the loops inside them, each from the target of a jump to the jump."""
    index = {address: i for i, (address, _) in enumerate(code)}
    uses = [i for i, (_, text) in enumerate(code) if re.match(operation, text)]
    spans = set()
    for end, (_, text) in enumerate(code):
        jump = re.match(r"j\w+\s+([0-9a-f]+)\b", text) if text[0] == "j" else None
        begin = index.get(int(jump[1], 16), end + 1) if jump else end + 1
        if begin <= end and bisect_left(uses, begin) < bisect_right(uses, end):
            spans.add((begin, end))
    own = set()
    for use in uses:
        around = [span for span in spans if span[0] <= use <= span[1]]
        own.update(span for span in around if not any(other != span and inside(other, span) for other in around))
    return [[text for _, text in code[begin : end + 1]] for begin, end in sorted(own)]


def inside(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


@pytest.mark.parametrize("operation", DOT_PRODUCTS)
def test_inner_loops_keep_their_sums_in_registers(machine_code, operation):
    if operation != "vpmaddubsw" and kernels.isa_is_emulated():
        pytest.skip(f"this build emulates the levels above avx2 and has no {operation}")
    loops = loops_of(machine_code, operation)
    assert max(sum(re.match(operation, line) is not None for line in body) for body in loops) >= DOT_PRODUCTS[operation]
    assert len(loops) >= 6
    for body in loops:
        on_stack = [line for line in body if re.search(r"%[xyz]mm", line) and re.search(r"\(%r[sb]p", line)]
        assert not on_stack, "\n".join(body)
