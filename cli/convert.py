"""`precast convert`."""

from __future__ import annotations

from pathlib import Path

import click

from precast.cli.options import progress_bars, revision_option


@click.command("convert")
@click.argument("model")
@click.option(
    "--output-dir",
    required=True,
    type=click.Path(path_type=Path),
    help="The checkpoint folder to write; an older checkpoint there is replaced.",
)
@click.option(
    "--quant",
    type=click.Choice(["none", "int8"]),
    default="none",
    show_default=True,
    help="Quantization of the linears.",
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16"]),
    default="auto",
    show_default=True,
    help="Of what is not quantized.",
)
@click.option(
    "--activation-group-size",
    type=int,
    help="int8: columns that share an activation scale (0: per token, 32, 64, 128). Default: 32.",
)
@click.option(
    "--rotate/--no-rotate",
    default=None,
    help="Rotate the residual stream offline. Default: with --quant int8, where the family allows.",
)
@click.option(
    "--exclude", multiple=True, help="Checkpoint modules to leave unquantized, as a shell pattern (repeatable)."
)
@revision_option
def command(
    model: str,
    output_dir: Path,
    quant: str,
    dtype: str,
    activation_group_size: int | None,
    rotate: bool | None,
    exclude: tuple[str, ...],
    revision: str | None,
) -> None:
    """Convert MODEL (a Hugging Face folder, a GGUF file, a hub id, or `demo`) into a checkpoint.

    \b
    Examples:
      precast convert ./SmolLM2-135M-Instruct --output-dir ckpt --quant int8
      precast convert model.gguf --output-dir ckpt
      precast convert HuggingFaceTB/SmolLM2-135M-Instruct --output-dir ckpt
    """
    from precast.pipeline import resolve
    from precast.quantize import ConvertOptions, convert

    options = ConvertOptions(quant, dtype, activation_group_size, rotate, exclude)
    with progress_bars() as progress:
        convert(resolve(model, progress, revision), output_dir, options, progress)
    click.echo(
        f"wrote the checkpoint {output_dir}; build it with: precast build {output_dir} --output-dir ENGINE", err=True
    )
