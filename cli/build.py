"""`precast build`."""

from __future__ import annotations

from pathlib import Path

import click

from precast.cli.options import progress_bars


@click.command("build")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option(
    "--output-dir",
    required=True,
    type=click.Path(path_type=Path),
    help="The engine folder to write; an older engine there is replaced.",
)
@click.option("--target", type=click.Choice(["cpu"]), default="cpu", show_default=True, help="What the engine runs on.")
@click.option(
    "--max-batch-size", type=click.IntRange(1), default=32, show_default=True, help="Most sequences that run at once."
)
@click.option(
    "--max-num-tokens", type=click.IntRange(1), default=512, show_default=True, help="Most tokens of one step."
)
@click.option(
    "--max-seq-len",
    type=click.IntRange(1),
    help="Most tokens of a prompt and its answer. Default: the model's, at most 4096.",
)
@click.option(
    "--kv-cache-dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "int8", "fp8"]),
    default="auto",
    show_default=True,
    help="Of cached keys and values; int8 and fp8 halve their memory.",
)
@click.option(
    "--optimization-level",
    type=click.IntRange(0, 3),
    default=2,
    show_default=True,
    help="How long kernels are timed on this machine, to choose what suits it: 0 not at all, 1 up to 10 s, with few "
    "candidates, 2 up to 30 s, 3 up to two minutes, with more. What was timed before is not timed again. No answer "
    "changes.",
)
@click.option(
    "--prefix",
    "texts",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A text file that prompts begin with (repeatable): its K/V is computed now, and the first request finds it.",
)
@click.option(
    "--prefix-messages",
    "chats",
    type=click.Path(path_type=Path),
    multiple=True,
    help='The same for chats: a JSON file with their first messages, [{"role": "system", "content": …}] (repeatable).',
)
def command(
    checkpoint: Path,
    output_dir: Path,
    target: str,
    max_batch_size: int,
    max_num_tokens: int,
    max_seq_len: int | None,
    kv_cache_dtype: str,
    optimization_level: int,
    texts: tuple[Path, ...],
    chats: tuple[Path, ...],
) -> None:
    """Compile CHECKPOINT (made by `precast convert`) into an engine for this machine.

    \b
    Examples:
      precast build ckpt --output-dir engine --max-batch-size 32 --max-seq-len 4096
      precast build ckpt --output-dir engine --prefix-messages system.json
    """
    from precast.builder import BuildOptions
    from precast.pipeline import build
    from precast.prefixes import Prefix

    options = BuildOptions(target, max_batch_size, max_num_tokens, max_seq_len, kv_cache_dtype, optimization_level)
    prefixes = [Prefix.read(path, False) for path in texts] + [Prefix.read(path, True) for path in chats]
    with progress_bars() as progress:
        ready = build(checkpoint, output_dir, options, progress, prefixes)
    for prefix, num_tokens in zip(prefixes, ready, strict=True):
        click.echo(f"prefix {prefix.name}: {num_tokens} tokens are ready", err=True)
    click.echo(f'wrote the engine {output_dir}; try: precast run {output_dir} "Hello"', err=True)
