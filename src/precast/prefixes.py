"""Prefixes whose K/V is computed at build time (`precast build --prefix`): the section `prefixes` of an engine."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast.errors import BuildError, RequestError
from precast.json_file import read_small_file
from precast.progress import Progress, silent
from precast.runtime.session import is_messages
from precast.runtime.text.chat_template import ChatTemplate
from precast.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from precast._native import runtime
    from precast.builder.options import BuildOptions

TAG = "prefixes.v0"

CONTINUATIONS = (
    *map(chr, range(32, 127)),
    *("\n", "\n\n", "\t", "\r\n", "  ", " a", "the", "ing", "'s", "...", "123"),
    *("é", "ß", "ж", "中", "の", "한", "ا", "ह", "…", "—", "😀", "\u0301"),
)
"""What a following text may begin with: letters, digits, marks, spaces, other scripts. A token at a prefix's end that
merges with one of them is held back. Others may merge with it still: prefixes are matched by ids, so that costs the
reuse of a page and no more."""

PAGE_ALIGNMENT = 4096


@dataclass(frozen=True)
class Prefix:
    """What prompts begin with: a text, or the first messages of a chat. `name` says in messages which one it is."""

    name: str
    content: str | list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path, messages: bool) -> Prefix:
        """A text file, or (`messages`) a JSON file with a list of messages. Raises BuildError."""
        data = read_small_file(path, BuildError)
        try:
            content = json.loads(data) if messages else data.decode()
        except (ValueError, RecursionError) as error:
            raise BuildError(f"the prefix {path} is not {'JSON' if messages else 'UTF-8 text'}: {error}") from None
        if messages and not is_messages(content):
            raise BuildError(f'the prefix {path} is not a list of messages: [{{"role": …, "content": …}}, …]')
        return cls(str(path), content)


def prefix_tokens(prefixes: Sequence[Prefix], checkpoint: Path, options: BuildOptions) -> list[list[int]]:
    """The tokens of each prefix that every prompt with this beginning has, cut to whole pages.

    Raises BuildError when a prefix has no page of them or does not fit, and when the checkpoint's tokenizer or chat
    template cannot be used for it.
    """
    if not prefixes:
        return []
    from precast.builder.options import resolve
    from precast.builder.weights import Checkpoint
    from precast.plugins.kv_append.reference import PAGE_TOKENS

    max_seq_len = resolve(options, Checkpoint(checkpoint).config).max_seq_len
    if not (checkpoint / "tokenizer.json").is_file():
        raise BuildError(f"{checkpoint} has no tokenizer, which prefixes need")
    tokenizer, template = Tokenizer.from_folder(checkpoint), ChatTemplate.from_folder(checkpoint)
    found = []
    for prefix in prefixes:
        try:
            ids = _stable_tokens(prefix, tokenizer, template)
        except RequestError as error:
            raise BuildError(f"the prefix {prefix.name}: {error}") from None
        whole = len(ids) // PAGE_TOKENS * PAGE_TOKENS
        if whole == 0:
            raise BuildError(f"the prefix {prefix.name} has {len(ids)} tokens to reuse; a KV page holds {PAGE_TOKENS}")
        if whole >= max_seq_len:
            raise BuildError(f"the prefix {prefix.name} has {whole} tokens; max_seq_len is {max_seq_len}")
        found.append(ids[:whole])
    return found


def _stable_tokens(prefix: Prefix, tokenizer: Tokenizer, template: ChatTemplate | None) -> list[int]:
    """The first tokens of a prefix, those that no continuation changes."""
    if isinstance(prefix.content, str):
        texts = [prefix.content + more for more in ("", *CONTINUATIONS)]
        return _common([tokenizer.encode(text) for text in texts])
    if template is None:
        raise RequestError("the model has no chat template; give a text")
    messages = prefix.content
    if messages[-1]["role"] == "user":  # an answer follows: its tokens are sampled and merge with nothing
        return tokenizer.encode(template.render(messages), add_special_tokens=False)
    rendered = [template.render([*messages, {"role": "user", "content": more}]) for more in ("a", *CONTINUATIONS[::8])]
    return _common([tokenizer.encode(text, add_special_tokens=False) for text in rendered])


def _common(sequences: list[list[int]]) -> list[int]:
    """The longest common beginning."""
    first, n = sequences[0], min(map(len, sequences))
    for ids in sequences[1:]:
        n = next((i for i in range(n) if ids[i] != first[i]), n)
    return first[:n]


def add_prefixes(engine: Path, prompts: Sequence[Sequence[int]], progress: Progress = silent) -> None:
    """Computes the K/V of `prompts`, each of whole pages, and writes it into the engine folder, which is not in use."""
    from precast._native import runtime
    from precast.builder.engine_file import EngineWriter

    if not prompts:
        return
    native = runtime.Engine(engine)
    num_pages = _compute(native, prompts, progress)
    words = [len(prompts), *(word for prompt in prompts for word in (len(prompt), *prompt))]
    head = struct.pack(f"<{len(words)}i", *words)
    sizes = [len(head), *(group.page_bytes * num_pages for group in native.limits.groups)]
    padding = [-size % PAGE_ALIGNMENT for size in sizes[:-1]] + [0]

    def parts() -> Iterator[bytes]:
        yield head + bytes(padding[0])
        for group, behind in enumerate(padding[1:]):
            yield from (native.page(group, page) for page in range(num_pages))
            yield bytes(behind)

    writer = EngineWriter.extend(engine / "rank0.engine", [("prefixes", TAG, sum(sizes) + sum(padding))])
    writer.add("prefixes", parts())
    writer.close()


def _compute(native: runtime.Engine, prompts: Sequence[Sequence[int]], progress: Progress) -> int:
    """Runs prompts into the first pages of the pools, a page that several share once; → how many pages."""
    import numpy as np

    limits, page = native.limits, native.limits.page_tokens
    tables: list[list[int]] = []
    num_pages, first_new = 0, []
    for i, prompt in enumerate(prompts):
        common = [len(_common([list(prompt), list(before)])) // page for before in prompts[:i]]
        known = max(common, default=0)
        beginning = tables[common.index(known)][:known] if known else []
        new = len(prompt) // page - known
        tables.append([*beginning, *range(num_pages, num_pages + new)])
        first_new.append(known * page)
        num_pages += new
    native.allocate_pages(num_pages)
    done, step = 0, limits.max_num_tokens // page * page
    for prompt, table, first in zip(prompts, tables, first_new, strict=True):
        for begin in range(first, len(prompt), step):
            progress("prefixes", done, num_pages * page)
            tokens = np.array(prompt[begin : begin + step], np.int32)
            spans = np.array([[len(tokens), begin]], np.int32)
            native.forward(tokens, spans, np.array([table], np.int32), np.zeros(0, np.int32))
            done += len(tokens)
    progress("prefixes", done, num_pages * page)
    return num_pages
