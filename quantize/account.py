"""Every tensor accounted for: which source tensors make which checkpoint tensor, before any of them is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

from precast.checkpoint import ModelConfig, tensor_shapes
from precast.errors import SourceError
from precast.quantize.families.family import Family, Part
from precast.quantize.pieces import Piece, Pieces, source_shape
from precast.quantize.rows import BLOCK_ELEMENTS
from precast.quantize.sources import Source

SHOWN = 5


def account(source: Source, family: Family, plain: ModelConfig) -> Pieces:
    """→ tensor of the plain checkpoint → the pieces of source tensors whose rows it joins.

    Raises SourceError that names tensors which are missing, unused, or of another shape than the config says, and a
    head that differs from the embedding though the config ties them.
    """
    found = source.shapes()
    _check_numbers(source, plain)
    wanted = tensor_shapes(plain)
    names = _Names(family, plain, found)
    pieces = {tensor: names.pieces(tensor, shape) for tensor, (_, shape) in wanted.items()}
    if missing := [piece.tensor for parts in pieces.values() for piece in parts if piece.tensor not in found]:
        raise SourceError(f"{source.where} lacks {_list(list(dict.fromkeys(missing)))}")
    for tensor, parts in pieces.items():
        _check_shape(source, parts, wanted[tensor][1])
    left = found.keys() - {piece.tensor for parts in pieces.values() for piece in parts}
    left = {name for name in left if not any(fnmatchcase(name, pattern) for pattern in family.ignored)}
    embedding = pieces["transformer.vocab_embedding.weight"][0]
    head = names.pieces("lm_head.weight", ())[0]
    if plain.tie_word_embeddings and head.tensor in left:
        _check_tied(source, head.tensor, embedding.tensor)
        left.remove(head.tensor)
    if left:
        raise SourceError(f"{source.where} has tensors that this model does not use: {_list(sorted(left))}")
    return pieces


def _check_numbers(source: Source, plain: ModelConfig) -> None:
    """Before billions of names are made of a damaged number."""
    tensors = len(source.shapes())
    if plain.num_hidden_layers > tensors:
        raise SourceError(f"{source.where} has {tensors} tensors for {plain.num_hidden_layers} layers")
    if plain.moe is not None and (experts := plain.moe.num_experts * len(plain.moe.layers)) > tensors:
        raise SourceError(f"{source.where} has {tensors} tensors for {experts} experts in all layers together")


class _Names:
    """Where a checkpoint's tensors are in a source."""

    def __init__(self, family: Family, config: ModelConfig, found: Mapping[str, tuple[int, ...]]) -> None:
        self.family = family
        self.config = config
        self.elements = sum(map(math.prod, found.values()))
        # The base model alone, without its head, is saved without the prefix.
        self.base = "" if any(name.startswith(family.base) for name in found) else family.base

    def pieces(self, tensor: str, shape: tuple[int, ...]) -> tuple[Piece, ...]:
        module, _, suffix = tensor.rpartition(".")
        possible = math.prod(shape) <= self.elements  # else rows are not listed: it does not fit anyway
        return tuple(self._piece(part, suffix, possible) for part in self.family.parts(module, self.config))

    def _piece(self, part: Part, suffix: str, possible: bool) -> Piece:
        name = part.module.removeprefix(self.base) if self.base else part.module
        return Piece(f"{name}.{suffix}", part, part.select(self.config) if part.select and possible else None)


def _list(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"the tensor{'s' if len(names) > 1 else ''} {', '.join(names[:SHOWN])}{more}"


def _check_shape(source: Source, parts: tuple[Piece, ...], wanted: tuple[int, ...]) -> None:
    """The pieces' rows must add up, and their columns be equal; which piece is wrong cannot always be told."""
    found = source.shapes()
    shapes = {piece.tensor: source_shape(piece, found[piece.tensor]) for piece in parts}
    rows = [shapes[piece.tensor][:1] if piece.rows is None else (len(piece.rows),) for piece in parts]
    fits = all(len(shape) == len(wanted) and shape[1:] == wanted[1:] for shape in shapes.values())
    fits = fits and sum(count for (count,) in rows) == wanted[0]
    for piece in parts:
        fits = fits and (piece.selection is None or shapes[piece.tensor][0] == piece.selection.of)
    if not fits:
        told = ", ".join(f"{name} is {list(found[name])}" for name in shapes)
        together = " together" if len(parts) > 1 else ""
        raise SourceError(f"{source.where}: {told}; the config asks for {list(wanted)}{together}")


def _check_tied(source: Source, head: str, embedding: str) -> None:
    shapes = source.shapes()
    rows, columns = shapes[embedding]
    step = max(1, BLOCK_ELEMENTS // columns)
    same = shapes[head] == shapes[embedding] and all(
        (source.rows(head, slice(a, a + step)) == source.rows(embedding, slice(a, a + step))).all()
        for a in range(0, rows, step)
    )
    if not same:
        raise SourceError(
            f"{source.where}: config.json says tie_word_embeddings, yet {head} differs from {embedding}; set it to "
            f"false to use {head}, or remove that tensor"
        )
