"""`precast eval`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from precast.cli import one_line
from precast.cli.options import progress_bars, table

if TYPE_CHECKING:
    from precast.evaluation.compare import Comparison, Position, Token
    from precast.evaluation.divergence import Divergence
    from precast.evaluation.model import Model
    from precast.evaluation.windows import Windows
    from precast.progress import Progress

F = TypeVar("F", bound=Callable[..., Any])


@click.group("eval")
def command() -> None:
    """Measure how well a model predicts a text, and how far two forms of one model lie apart.

    A Hugging Face folder is run by transformers (extra `convert`), a checkpoint or a GGUF file as the engine that the
    build cache has or makes of it, an engine as it is: see docs/quality.md.

    \b
    Examples:
      precast eval perplexity engine --text held-out.txt
      precast eval compare ./SmolLM2-135M-Instruct engine --text held-out.txt
    """


def _options(command: F) -> F:
    """What both commands take."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--num-threads", type=click.IntRange(1, 1024), help="Threads. Default: what the machine gives."),
        click.option(
            "--dtype",
            type=click.Choice(["float32", "bfloat16"]),
            default="float32",
            show_default=True,
            help="What transformers computes a Hugging Face folder in.",
        ),
        click.option(
            "--max-windows", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Most windows."
        ),
        click.option(
            "--window",
            type=click.IntRange(2, 1_000_000),
            default=512,
            show_default=True,
            help="Tokens of a window; every one but its first is predicted from those before it.",
        ),
        click.option(
            "--text",
            required=True,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="A UTF-8 text that the model was not made with. Its beginning is used.",
        ),
    ):
        command = option(command)
    return command


@command.command("perplexity")
@click.argument("model")
@_options
def perplexity(
    model: str, text: Path, window: int, max_windows: int, dtype: str, num_threads: int | None, as_json: bool
) -> None:
    """Measure the perplexity of MODEL on a text.

    The text is encoded with the model's own tokenizer and cut into windows that do not overlap. Each begins with the
    tokens that the tokenizer puts before a text (BOS), if it does.

    \b
    Examples:
      precast eval perplexity engine --text held-out.txt
      precast eval perplexity ./SmolLM2-135M-Instruct --text held-out.txt --dtype bfloat16 --json
    """
    from precast.evaluation.perplexity import perplexity as measure
    from precast.evaluation.windows import windows_of

    with progress_bars() as progress:
        opened = _open(model, dtype, num_threads, progress)
        windows = windows_of(text, opened.tokenizer, window, max_windows)
        opened.reserve(windows.longest)
        found = measure(opened, windows, progress)
    if as_json:
        described = {"model": opened.name, "runs_on": opened.runs_on} | _described(text, window, windows)
        _print_json(described | asdict(found) | {"perplexity": found.perplexity})
        return
    click.echo(one_line(f"{opened.name}: {opened.runs_on}"))
    click.echo(_of_text(window, windows, opened))
    click.echo(f"perplexity {found.perplexity:,.4g}, {found.nats_per_token:.4f} nats per token; {found.seconds:,.1f} s")


@command.command("compare")
@click.argument("a")
@click.argument("b")
@_options
@click.option("--worst", type=click.IntRange(0, 1000), default=5, show_default=True, help="Worst positions to show.")
@click.option(
    "--prompts",
    type=click.IntRange(0, 1000),
    default=8,
    show_default=True,
    help="Prompts, cut from the text, whose greedy answers are compared.",
)
@click.option(
    "--max-tokens", type=click.IntRange(1, 100_000), default=64, show_default=True, help="Tokens of these answers."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="Of where prompts are cut."
)
def compare(
    a: str,
    b: str,
    text: Path,
    window: int,
    max_windows: int,
    dtype: str,
    num_threads: int | None,
    worst: int,
    prompts: int,
    max_tokens: int,
    seed: int,
    as_json: bool,
) -> None:
    """Measure how far B's distributions lie from A's on a text: KL(A ‖ B) over the whole vocabulary.

    A is the reference, B what was made of it; both need the same tokenizer. Windows are as in `eval perplexity`.

    \b
    Examples:
      precast eval compare ./SmolLM2-135M-Instruct engine --text held-out.txt
      precast eval compare engine-bf16 engine-int8 --text held-out.txt --worst 20 --json
    """
    from precast.evaluation.compare import compare as measure
    from precast.evaluation.compare import refuse_different_vocabularies
    from precast.evaluation.divergence import divergences, prompts_of
    from precast.evaluation.windows import windows_of

    with progress_bars() as progress:
        model_a, model_b = models = [_open(name, dtype, num_threads, progress) for name in (a, b)]
        refuse_different_vocabularies(model_a, model_b)
        windows = windows_of(text, model_a.tokenizer, window, max_windows)
        begun = prompts_of(windows, prompts, seed)
        for model in models:
            model.reserve(max([windows.longest, *(len(prompt) + max_tokens for prompt in begun)]))
        found = measure(model_a, model_b, windows, worst, progress)
        parted = divergences(model_a, model_b, begun, max_tokens, progress)
    if as_json:
        described = {key: {"model": m.name, "runs_on": m.runs_on} for key, m in zip("ab", models, strict=True)}
        answers = {"max_tokens": max_tokens, "divergences": list(map(asdict, parted))}
        perplexities = {"perplexity_a": found.perplexity_a, "perplexity_b": found.perplexity_b}
        _print_json(described | _described(text, window, windows) | asdict(found) | perplexities | answers)
        return
    for key, model in zip("AB", models, strict=True):
        click.echo(one_line(f"{key}: {model.name}: {model.runs_on}"))
    click.echo(_of_text(window, windows, model_a))
    _print_comparison(found)
    if found.worst:
        click.echo("\nworst positions (probabilities in A and in B):")
        for position in found.worst:
            _print_position(position)
    if parted:
        click.echo(f"\ngreedy answers to {len(parted)} prompts, {max_tokens} tokens each:")
        for each in parted:
            _print_divergence(each)


def _open(name: str, dtype: str, num_threads: int | None, progress: Progress) -> Model:
    from precast.evaluation.model import open_model
    from precast.pipeline import resolve

    return open_model(resolve(name, progress), dtype, num_threads, progress)


def _described(text: Path, window: int, windows: Windows) -> dict[str, Any]:
    return {"text": str(text), "window": window, "begins_with": windows.start}


def _of_text(window: int, windows: Windows, model: Model) -> str:
    begin = model.tokenizer.decode(windows.start, skip_special_tokens=False)
    each = f", each behind {begin}" if windows.start else ""
    return one_line(f"{windows.predicted:,} tokens predicted in {len(windows.windows)} windows of {window}{each}")


def _print_comparison(found: Comparison) -> None:
    table(
        ["KL(A ‖ B), nats per token:", "mean", "median", "p99", "max"],
        [["", *(f"{value:.3g}" for value in (found.kl_mean, found.kl_median, found.kl_p99, found.kl_max))]],
    )
    click.echo(
        f"both hold the same token most likely at {found.top1_agreement:.2%}; perplexity {found.perplexity_a:,.4g} "
        f"and {found.perplexity_b:,.4g}; {found.seconds:,.1f} s"
    )


def _print_position(position: Position) -> None:
    where = f"KL {position.kl:.3g} in window {position.window + 1} at token {position.position + 1}"
    click.echo(one_line(f"  {where}: …{position.context}"))
    for what, token in (("next", position.token), ("A's top", position.top_a), ("B's top", position.top_b)):
        click.echo(f"    {what:<8} {_token(token)}")


def _print_divergence(found: Divergence) -> None:
    prompt = f"…{found.prompt[-40:]}"
    if found.token_a is None or found.token_b is None:
        click.echo(one_line(f"  equal: {prompt}"))
        return
    click.echo(one_line(f"  part after {found.equal_tokens} tokens: {prompt}"))
    click.echo(f"    A {_token(found.token_a)}\n    B {_token(found.token_b)}")


def _token(token: Token) -> str:
    return one_line(f"{token.text!r}  {token.probability_a:.4f}  {token.probability_b:.4f}")


def _print_json(found: dict[str, Any]) -> None:
    click.echo(json.dumps({k: None if v == math.inf else v for k, v in found.items()}, indent=2))
