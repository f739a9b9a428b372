"""Every tensor accounted for: which source tensors make which checkpoint tensor, before any of them is read."""

from __future__ import annotations

from fnmatch import fnmatchcase

from precast.checkpoint import ModelConfig, tensor_shapes
from precast.errors import SourceError
from precast.quantize.families.family import Family
from precast.quantize.rows import BLOCK_ELEMENTS
from precast.quantize.sources import Source

SHOWN = 5


def account(source: Source, family: Family, plain: ModelConfig) -> dict[str, tuple[str, ...]]:
    """→ tensor of the plain checkpoint → the source tensors whose rows it joins.

    Raises SourceError that names tensors which are missing, unused, or of another shape than the config says, and a
    head that differs from the embedding though the config ties them.
    """
    found = source.shapes()
    if plain.num_hidden_layers > len(found):  # before billions of names are made of a damaged number
        raise SourceError(f"{source.where} has {len(found)} tensors for {plain.num_hidden_layers} layers")
    wanted = tensor_shapes(plain)
    names = {tensor: _source_tensors(tensor, family) for tensor in wanted}
    if missing := [part for parts in names.values() for part in parts if part not in found]:
        raise SourceError(f"{source.where} lacks {_list(missing)}")
    for tensor, parts in names.items():
        _check_shape(source, {part: found[part] for part in parts}, wanted[tensor][1])
    left = found.keys() - {part for parts in names.values() for part in parts}
    left = {name for name in left if not any(fnmatchcase(name, pattern) for pattern in family.ignored)}
    (head,), (embedding,) = (
        _source_tensors(name, family) for name in ("lm_head.weight", "transformer.vocab_embedding.weight")
    )
    if plain.tie_word_embeddings and head in left:
        _check_tied(source, head, embedding)
        left.remove(head)
    if left:
        raise SourceError(f"{source.where} has tensors that this model does not use: {_list(sorted(left))}")
    return names


def _source_tensors(tensor: str, family: Family) -> tuple[str, ...]:
    module, _, suffix = tensor.rpartition(".")
    if module in family.modules:
        return tuple(f"{part}.{suffix}" for part in family.modules[module])
    _, _, layer, name = module.split(".", 3)
    return tuple(f"{part.replace('{i}', layer)}.{suffix}" for part in family.layer_modules[name])


def _list(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"the tensor{'s' if len(names) > 1 else ''} {', '.join(names[:SHOWN])}{more}"


def _check_shape(source: Source, parts: dict[str, tuple[int, ...]], wanted: tuple[int, ...]) -> None:
    """The parts' rows must add up, and their columns be equal; which part is wrong cannot always be told."""
    shapes = list(parts.values())
    if any(len(shape) != len(wanted) or shape[1:] != wanted[1:] for shape in shapes) or (
        sum(shape[0] for shape in shapes) != wanted[0]
    ):
        told = ", ".join(f"{name} is {list(shape)}" for name, shape in parts.items())
        together = " together" if len(parts) > 1 else ""
        raise SourceError(f"{source.where}: {told}; the config asks for {list(wanted)}{together}")


def _check_tied(source: Source, head: str, embedding: str) -> None:
    shapes = source.shapes()
    rows, columns = shapes[embedding]
    step = max(1, BLOCK_ELEMENTS // columns)
    same = shapes[head] == shapes[embedding] and all(
        (source.rows(head, a, min(a + step, rows)) == source.rows(embedding, a, min(a + step, rows))).all()
        for a in range(0, rows, step)
    )
    if not same:
        raise SourceError(
            f"{source.where}: config.json says tie_word_embeddings, yet {head} differs from {embedding}; set it to "
            f"false to use {head}, or remove that tensor"
        )
