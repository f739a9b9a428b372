"""`precast run`."""

from __future__ import annotations

import json
import time
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import click

from precast.cli.input_lines import InputLine, decoded, name_of, read_lines, standard_input
from precast.cli.options import (
    chat_template_option,
    load_llm,
    model_options,
    output_options,
    runtime_options,
    sampling_options,
    sampling_params,
    say_when_cut,
)
from precast.errors import PrecastError, RequestError


@click.command("run")
@click.argument("model")
@click.argument("prompt", required=False)
@click.option(
    "--input-file",
    type=click.Path(path_type=Path),
    help='Answer every line of a JSONL file (`-`: standard input), {"prompt": …} or {"messages": […]}, with JSON lines '
    'in its order. A line may have settings of its own, {"prompt": …, "max_tokens": 9}, and an "id", which comes back.',
)
@click.option(
    "--scheduler-policy",
    type=click.Choice(["guaranteed_no_evict", "max_utilization", "static_batch"]),
    help="How the lines of a file share the engine. Default: guaranteed_no_evict; max_utilization runs more at a "
    "time when --max-tokens is far above what answers take.",
)
@click.option("--output-file", type=click.Path(path_type=Path), help="Where these JSON lines go. Default: printed.")
@click.option("--raw", is_flag=True, help="Give the prompt as it is, without the model's chat template.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option("--stats", is_flag=True, help="Print time to first token and tokens per second on standard error.")
@model_options
@chat_template_option
@sampling_options
@output_options
@runtime_options
def command(
    model: str,
    prompt: str | None,
    input_file: Path | None,
    output_file: Path | None,
    raw: bool,
    as_json: bool,
    stats: bool,
    **options: Any,
) -> int:
    """Answer PROMPT (`-`: standard input) with MODEL: an engine, a checkpoint, a model folder, a GGUF file, a hub id,
    or `demo`.

    A model that is not an engine is converted and built once, into the build cache.

    \b
    Examples:
      precast run demo "What is the capital of France?"
      precast run engine "Tell me a story" --max-tokens 200 --temperature 0.7 --seed 1
      precast run engine - --json < question.txt
      precast run engine "A name for a cat:" --raw --n 3 --temperature 1 --max-tokens 8
      precast run engine --input-file prompts.jsonl --output-file answers.jsonl
    """
    if prompt is None and input_file is None:
        raise click.UsageError("give a PROMPT (`-`: standard input) or --input-file")
    if prompt is not None and input_file is not None:
        raise click.UsageError("give either a PROMPT or --input-file, not both")
    if input_file is None and output_file is not None:
        raise click.UsageError("--output-file needs --input-file")
    if input_file is not None and output_file is not None and output_file.resolve() == input_file.resolve():
        raise click.UsageError("--output-file would overwrite --input-file")
    if input_file is None and not as_json and (options["logprobs"], options["prompt_logprobs"]) != (None, None):
        raise click.UsageError("--logprobs and --prompt-logprobs need --json or --input-file")
    lines = [InputLine(1, _text(prompt), {}, None)] if input_file is None else read_lines(input_file)
    with load_llm(model, options) as llm:
        if llm.has_chat_template and not raw:
            lines = [_as_chat(line) for line in lines]
        if input_file is None and not as_json:
            params = sampling_params(llm, options)
            several = (params.n or 1) > 1 or (params.best_of or 1) > 1
            answer = _print_all if several else _stream
            return answer(llm, lines[0].prompt, params, stats, options["max_tokens"])
        return _answer_all(llm, lines, options, stats, input_file, output_file)


def _as_chat(line: InputLine) -> InputLine:
    return replace(line, prompt=[{"role": "user", "content": line.prompt}]) if isinstance(line.prompt, str) else line


def _stream(llm: Any, prompt: Any, params: Any, stats: bool, max_tokens: int | None) -> int:
    """Prints an answer as it comes."""
    last = None
    for last in llm.stream(prompt, params):
        click.echo(last.text, nl=False)
    click.echo()
    if last is not None:
        say_when_cut(last.finish_reason, max_tokens)
    if stats and last is not None:
        click.echo(last.stats_line(), err=True)
    return 0


def _print_all(llm: Any, prompt: Any, params: Any, stats: bool, max_tokens: int | None) -> int:
    """Prints several answers, each behind its number; 1 when one failed."""
    (answer,) = llm.generate([prompt], params)
    for output in answer.outputs:
        click.echo(f"[{output.index}] {output.text}")
    if stats:
        click.echo(answer.stats_line(), err=True)
    if answer.error is not None:
        raise PrecastError(answer.error)
    return 0


def _answer_all(
    llm: Any,
    lines: list[InputLine],
    options: dict[str, Any],
    stats: bool,
    input_file: Path | None,
    output_file: Path | None,
) -> int:
    """A JSON line for each line, in order, as soon as it and those before it are answered; 1 when one failed."""
    failed, num_tokens, begin = 0, 0, time.monotonic()
    number = 0
    try:
        settings = []
        for number in range(len(lines)):
            settings.append(_settings_of(llm, options, lines[number]))
        answers = llm.generate_each([line.prompt for line in lines], *zip(*settings, strict=True))
        first = next(answers)  # refuses prompts before a file of older answers is overwritten
    except RequestError as error:
        if input_file is None:
            raise
        index = number if error.prompt_index is None else error.prompt_index
        raise PrecastError(f"{name_of(input_file)}, line {lines[index].number}: {error.reason or error}") from None
    with click.open_file(str(output_file or "-"), "w", "utf-8") as out:
        for line, output in zip(lines, chain((first,), answers), strict=True):
            named = {} if line.id is None else {"id": line.id}
            out.write(json.dumps(named | output.to_json(), ensure_ascii=False) + "\n")
            out.flush()
            failed += output.error is not None
            num_tokens += output.usage.completion_tokens
            if stats:
                click.echo(output.stats_line(), err=True)
    if stats and len(lines) > 1:
        seconds = time.monotonic() - begin
        told = f"{len(lines)} prompts, {num_tokens} tokens in {seconds:.1f} s, {num_tokens / seconds:.1f} tokens/s"
        click.echo(f"all: {told}", err=True)
    if failed:
        click.echo(f"error: {failed} of {len(lines)} requests failed; their lines say why", err=True)
    return 1 if failed else 0


def _settings_of(llm: Any, options: dict[str, Any], line: InputLine) -> tuple[Any, Any]:
    """(SamplingParams, RequestOptions): the line's settings before the command's. Raises RequestError."""
    from precast.runtime.request_options import RequestOptions

    names = {field.name for field in fields(RequestOptions)}
    own = {name: value for name, value in line.settings.items() if name in names}
    sampling = {name: value for name, value in line.settings.items() if name not in names}
    return sampling_params(llm, options, **sampling), RequestOptions(**own)


def _text(prompt: str | None) -> str:
    text = prompt if prompt != "-" else decoded(standard_input(), "standard input")
    if not text:
        raise click.UsageError("the prompt is empty")
    return text
