"""`precast run`."""

from __future__ import annotations

import json
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any

import click

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
    "in its order.",
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
    lines = {} if input_file is None else _lines(input_file)
    prompts = [_text(prompt)] if input_file is None else list(lines.values())
    with load_llm(model, options) as llm:
        params = sampling_params(llm, options)
        if llm.has_chat_template and not raw:
            prompts = [[{"role": "user", "content": p}] if isinstance(p, str) else p for p in prompts]
        if input_file is None and not as_json and (params.n or 1) == (params.best_of or 1) == 1:
            return _stream(llm, prompts[0], params, stats, options["max_tokens"])
        if input_file is None and not as_json:
            return _print_all(llm, prompts[0], params, stats)
        try:
            return _answer_all(llm, prompts, params, stats, output_file)
        except RequestError as error:
            if input_file is None or error.prompt_index is None:
                raise
            raise PrecastError(f"{_name(input_file)}, line {list(lines)[error.prompt_index]}: {error.reason}") from None


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


def _print_all(llm: Any, prompt: Any, params: Any, stats: bool) -> int:
    """Prints several answers, each behind its number; 1 when one failed."""
    (answer,) = llm.generate([prompt], params)
    for output in answer.outputs:
        click.echo(f"[{output.index}] {output.text}")
    if stats:
        click.echo(answer.stats_line(), err=True)
    if answer.error is not None:
        raise PrecastError(answer.error)
    return 0


def _answer_all(llm: Any, prompts: list[Any], params: Any, stats: bool, output_file: Path | None) -> int:
    """A JSON line for each prompt, in order, as soon as it and those before it are answered; 1 when one failed."""
    failed, num_tokens, begin = 0, 0, time.monotonic()
    answers = llm.generate_each(prompts, params)
    first = next(answers)  # refuses prompts before a file of older answers is overwritten
    with click.open_file(str(output_file or "-"), "w", "utf-8") as out:
        for output in chain((first,), answers):
            out.write(json.dumps(output.to_json(), ensure_ascii=False) + "\n")
            out.flush()
            failed += output.error is not None
            num_tokens += output.usage.completion_tokens
            if stats:
                click.echo(output.stats_line(), err=True)
    if stats and len(prompts) > 1:
        seconds = time.monotonic() - begin
        told = f"{len(prompts)} prompts, {num_tokens} tokens in {seconds:.1f} s, {num_tokens / seconds:.1f} tokens/s"
        click.echo(f"all: {told}", err=True)
    if failed:
        click.echo(f"error: {failed} of {len(prompts)} requests failed; their lines say why", err=True)
    return 1 if failed else 0


def _text(prompt: str | None) -> str:
    text = prompt if prompt != "-" else _decode(_standard_input(), "standard input")
    if not text:
        raise click.UsageError("the prompt is empty")
    return text


def _name(path: Path) -> str:
    return "standard input" if str(path) == "-" else str(path)


def _lines(path: Path) -> dict[int, Any]:
    """Line number → prompt of a JSONL file (`-`: standard input): texts, lists of token ids, lists of messages.

    Lines end at line feeds alone: JSON texts may hold the other separators of Unicode as they are.
    """
    prompts = {}
    where = _name(path)
    data = _standard_input() if str(path) == "-" else path.read_bytes()
    for number, line in enumerate(_decode(data, where).split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and (unknown := sorted(value.keys() - {"prompt", "messages"})):
            told = "a line has prompt or messages alone, and settings are options of the command"
            raise PrecastError(f"{where}, line {number}: {unknown[0][:40]} is not known; {told}")
        if not isinstance(value, dict) or len(value) != 1:
            raise PrecastError(f'{where}, line {number}: expected {{"prompt": …}} or {{"messages": […]}}')
        prompt = value.get("prompt", value.get("messages"))
        if not prompt or not isinstance(prompt, str | list):
            raise PrecastError(f"{where}, line {number}: the prompt is empty, or neither a text nor a list")
        prompts[number] = prompt
    if not prompts:
        raise PrecastError(f"{where} has no prompts")
    return prompts


def _standard_input() -> bytes:
    return sys.stdin.buffer.read() if sys.stdin else b""  # None: closed before the start


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PrecastError(f"{where} is not UTF-8 text (byte {error.start})") from None
