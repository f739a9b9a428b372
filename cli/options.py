"""Options that several commands share, and the progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from precast.progress import Progress, silent

F = TypeVar("F", bound=Callable[..., Any])

LABELS = {
    "wait": "Waiting for a build",
    "fetch": "Fetching the model",
    "convert": "Converting",
    "time": "Timing kernels",
    "pack": "Packing weights",
    "prefixes": "Computing prefixes",
    "check": "Checking the engine",
    "calibrate": "Timing steps",
    "simulate": "Simulating",
    "reference": "Running the source",
    "evaluate": "Evaluating",
    "generate": "Generating",
}


def say_when_cut(finish_reason: str | None, max_tokens: int | None) -> None:
    """A word on standard error when an answer ended for want of room that nobody set on the command line."""
    if finish_reason == "length" and max_tokens is None:
        click.echo("(cut: the model's default length or the engine's max_seq_len is reached)", err=True)


class MemorySize(click.ParamType):  # type: ignore[type-arg] # generic since click 8.2 only
    """Bytes with an optional unit: 512M, 2G, 1073741824."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().upper().removesuffix("B").removesuffix("I")
        unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
        number = text[:-1] if unit else text
        try:
            size = int(float(number) * (1 << unit))
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a size like 512M or 2G", param, ctx)
        if size <= 0:
            self.fail("a size must be positive", param, ctx)
        return size


class LogitBias(click.ParamType):  # type: ignore[type-arg] # as above
    """A token id and a number: 42=-3.5."""

    name = "id=bias"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        token, _, bias = str(value).partition("=")
        try:
            return int(token), float(bias)
        except ValueError:
            self.fail(f"{value!r} is not a token id and a number like 42=-3.5", param, ctx)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A progress that draws bars on standard error when that is a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield silent
        return
    bar: Any = None
    current = ""

    def report(stage: str, done: int, total: int) -> None:
        nonlocal bar, current
        if stage != current:
            if bar is not None:
                bar.render_finish()
            current = stage
            bar = click.progressbar(length=max(total, 1), label=f"{LABELS.get(stage, stage):<20}", file=sys.stderr)
            bar.render_progress()
        bar.update(done - bar.pos)

    try:
        yield report
    finally:
        if bar is not None:
            bar.render_finish()


def runtime_options(command: F) -> F:
    """--num-threads, --weights-memory, --kv-cache-memory and --no-prefix-caching."""
    for option in (
        click.option(
            "--no-prefix-caching", is_flag=True, help="Compute every prompt from its first token. No answer changes."
        ),
        click.option(
            "--kv-cache-memory",
            type=MemorySize(),
            help="Memory for the KV cache, e.g. 512M. Default: what the engine's limits need.",
        ),
        click.option(
            "--weights-memory",
            type=click.Choice(["map", "copy"]),
            help="`map` (default): the engine file's pages, which processes share; `copy`: own memory, in huge pages.",
        ),
        click.option("--num-threads", type=click.IntRange(1, 1024), help="Threads. Default: what the machine gives."),
    ):
        command = option(command)
    return command


_SAMPLING = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "include_stop_str_in_output",
    "ignore_eos",
    "logprobs",
    "prompt_logprobs",
    "echo",
    "n",
    "best_of",
)


def sampling_options(command: F) -> F:
    """How tokens are chosen; absent values come from the model's generation_config.json."""
    for option in (
        click.option("--ignore-eos", is_flag=True, help="Go on after the model's end tokens."),
        click.option("--min-tokens", type=click.IntRange(0), help="Least tokens of an answer."),
        click.option(
            "--include-stop-str-in-output", is_flag=True, help="What stops an answer (--stop, end token) is part of it."
        ),
        click.option("--stop", multiple=True, help="Stop at this text (repeatable)."),
        click.option("--bad-words", multiple=True, metavar="TEXT", help="Never write this text (repeatable)."),
        click.option(
            "--logit-bias", type=LogitBias(), multiple=True, help="Add to the logit of a token (repeatable): 42=-3.5."
        ),
        click.option(
            "--frequency-penalty",
            type=click.FloatRange(-2, 2),
            help="Make tokens less likely each time that they have been written.",
        ),
        click.option(
            "--presence-penalty",
            type=click.FloatRange(-2, 2),
            help="Make tokens less likely that have been written.",
        ),
        click.option(
            "--repetition-penalty",
            type=click.FloatRange(0, min_open=True),
            help="Above 1: make tokens less likely that the prompt or the answer has.",
        ),
        click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Makes sampling repeatable."),
        click.option(
            "--top-p",
            type=click.FloatRange(0, 1, min_open=True),
            help="Keep the most likely tokens of this total probability.",
        ),
        click.option(
            "--min-p",
            type=click.FloatRange(0, 1),
            help="Keep tokens of at least this share of the highest probability.",
        ),
        click.option("--top-k", type=click.IntRange(0), help="Keep the K most likely tokens; 0: all."),
        click.option("--temperature", type=click.FloatRange(0), help="0: always the most likely token."),
        click.option(
            "--max-tokens",
            type=click.IntRange(0),
            help="Most tokens of an answer. Default: as many as the engine has room for.",
        ),
        click.option("--no-generation-config", is_flag=True, help="Ignore the model's generation_config.json."),
    ):
        command = option(command)
    return command


def output_options(command: F) -> F:
    """How many outputs a prompt has, and what they tell."""
    for option in (
        click.option("--echo", is_flag=True, help="The answer begins with the prompt."),
        click.option(
            "--prompt-logprobs",
            type=click.IntRange(0),
            help="With JSON: log-probabilities of the prompt's tokens, and of the N most likely ones.",
        ),
        click.option(
            "--logprobs",
            type=click.IntRange(0),
            help="With JSON: log-probabilities of each token, and of the N most likely ones.",
        ),
        click.option(
            "--best-of", type=click.IntRange(1), help="Make so many answers, and give the --n most likely ones."
        ),
        click.option("--n", type=click.IntRange(1), help="Answers to a prompt; several need a --temperature."),
    ):
        command = option(command)
    return command


def sampling_params(llm: Any, options: dict[str, Any], **first: Any) -> Any:
    """SamplingParams of `first`, then of the options of `sampling_options` and `output_options`, over the model's
    defaults."""
    given = {name: options[name] for name in _SAMPLING if options.get(name) is not None and options[name] is not False}
    given |= {name: list(options[name]) for name in ("stop", "bad_words") if options[name]}
    if options["logit_bias"]:
        given["logit_bias"] = dict(options["logit_bias"])
    return llm.default_params(generation_config=not options["no_generation_config"], **(given | first))


def model_options(command: F) -> F:
    """--quant and --revision: what is done with a MODEL that is not an engine."""
    return revision_option(
        click.option(
            "--quant",
            type=click.Choice(["none", "int8"]),
            help="How to convert a model that is not an engine yet. Default: int8.",
        )(command)
    )


def revision_option(command: F) -> F:
    """--revision."""
    return click.option("--revision", help="The branch, tag or commit of a hub id. Default: its main branch.")(command)


def chat_template_option(command: F) -> F:
    """--chat-template."""
    return click.option(
        "--chat-template",
        metavar="FILE",
        help="A Jinja template for chats, or the name of one of the model's. Default: the model's own.",
    )(command)


def load_llm(model: str, options: dict[str, Any]) -> Any:
    """The LLM of any MODEL, by the options of `model_options` and `runtime_options`; with progress while it is made."""
    from precast.pipeline import LLM

    converting = None
    if options["quant"] is not None:
        from precast.quantize import ConvertOptions

        converting = ConvertOptions(quant=options["quant"])
    with progress_bars() as progress:
        return LLM(
            model,
            convert_options=converting,
            progress=progress,
            revision=options["revision"],
            num_threads=options["num_threads"],
            weights_memory=options["weights_memory"],
            kv_cache_memory=options["kv_cache_memory"],
            enable_prefix_caching=not options["no_prefix_caching"],
            scheduler_policy=options.get("scheduler_policy"),
            chat_template=options["chat_template"],
        )


def milliseconds(seconds: float) -> str:
    """A time as people read it."""
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2f} ms"


def table(head: list[str], rows: list[list[str]]) -> None:
    """Prints columns, aligned to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        click.echo("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
