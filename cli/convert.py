"""`precast convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from precast.cli import one_line
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
@click.option(
    "--eval",
    "evaluate",
    is_flag=True,
    help="Measure the checkpoint against its source, through engines of both, and note it in report.json. Takes the "
    "time of generating 16 times 256 tokens and reading 8,160, and temporary disk space of twice the source beside the "
    "output folder.",
)
@click.option(
    "--eval-text",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="--eval on this text. Default: a text that the source itself generates.",
)
@click.option(
    "--max-kl",
    type=click.FloatRange(0),
    help="--eval, and refuse a checkpoint whose mean KL divergence from its source, in nats per token, is larger.",
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
    evaluate: bool,
    eval_text: Path | None,
    max_kl: float | None,
    revision: str | None,
) -> None:
    """Convert MODEL (a Hugging Face folder, a GGUF file, a hub id, or `demo`) into a checkpoint.

    \b
    Examples:
      precast convert ./SmolLM2-135M-Instruct --output-dir ckpt --quant int8
      precast convert ./SmolLM2-135M-Instruct --output-dir ckpt --quant int8 --eval --max-kl 0.02
      precast convert model.gguf --output-dir ckpt
      precast convert HuggingFaceTB/SmolLM2-135M-Instruct --output-dir ckpt
    """
    from precast.pipeline import resolve
    from precast.quantize import ConvertOptions, convert

    options = ConvertOptions(quant, dtype, activation_group_size, rotate, exclude)
    with progress_bars() as progress:
        source = resolve(model, progress, revision)
        if evaluate or eval_text is not None or max_kl is not None:
            from precast.evaluation.conversion import convert_and_measure

            quality = convert_and_measure(source, output_dir, options, eval_text, max_kl, progress)
        else:
            convert(source, output_dir, options, progress)
            quality = None
    if quality is not None:
        _print_quality(quality)
    click.echo(
        f"wrote the checkpoint {output_dir}; build it with: precast build {output_dir} --output-dir ENGINE", err=True
    )


def _print_quality(quality: dict[str, Any]) -> None:
    from precast.evaluation.conversion import WARN_KL

    text = "a text that the source generated" if quality["text"] is None else one_line(quality["text"])
    click.echo(
        f"KL from the source: mean {quality['kl_mean']:.3g}, p99 {quality['kl_p99']:.3g} nats per token; the same most "
        f"likely token at {quality['top1_agreement']:.2%}; perplexity {quality['perplexity_source']:,.4g} before, "
        f"{quality['perplexity']:,.4g} after ({quality['tokens']:,} tokens of {text})"
    )
    memory = f"{quality['convert_peak_memory_bytes'] / 1e6:,.0f} MB of memory"
    click.echo(
        f"weights {quality['source_weights_bytes'] / 1e6:,.0f} MB before, {quality['weights_bytes'] / 1e6:,.0f} MB "
        f"after; converted in {quality['convert_seconds']:,.1f} s and {memory}, measured in "
        f"{quality['evaluate_seconds']:,.1f} s"
    )
    if quality["kl_mean"] > WARN_KL:
        click.echo(
            f"warning: the mean KL exceeds {WARN_KL} nats per token: answers will differ from the source's; see them "
            "with precast eval compare, or exclude modules from quantization",
            err=True,
        )
