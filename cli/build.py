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
def command(
    checkpoint: Path,
    output_dir: Path,
    target: str,
    max_batch_size: int,
    max_num_tokens: int,
    max_seq_len: int | None,
    kv_cache_dtype: str,
) -> None:
    """Compile CHECKPOINT (made by `precast convert`) into an engine for this machine.

    \b
    Example:
      precast build ckpt --output-dir engine --max-batch-size 32 --max-seq-len 4096
    """
    from precast.builder import BuildOptions
    from precast.pipeline import build

    options = BuildOptions(target, max_batch_size, max_num_tokens, max_seq_len, kv_cache_dtype)
    with progress_bars() as progress:
        build(checkpoint, output_dir, options, progress)
    click.echo(f'wrote the engine {output_dir}; try: precast run {output_dir} "Hello"', err=True)
