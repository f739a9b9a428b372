"""`precast run`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from precast.cli.options import load_llm, quant_option, runtime_options, sampling_options
from precast.errors import PrecastError


@click.command("run")
@click.argument("model")
@click.argument("prompt", required=False)
@click.option(
    "--input-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help='Answer every line of a JSONL file: {"prompt": …} or {"messages": […]}; answers are JSON lines in its order.',
)
@click.option("--raw", is_flag=True, help="Give the prompt as it is, without the model's chat template.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option("--stats", is_flag=True, help="Print time to first token and tokens per second on standard error.")
@quant_option
@sampling_options
@runtime_options
def command(
    model: str,
    prompt: str | None,
    input_file: Path | None,
    raw: bool,
    as_json: bool,
    stats: bool,
    quant: str | None,
    num_threads: int | None,
    kv_cache_memory: int | None,
    **sampling: Any,
) -> None:
    """Answer PROMPT (`-`: standard input) with MODEL: an engine, a model folder, a GGUF file, or `demo`.

    A model that is not an engine is converted and built once, into the build cache.

    \b
    Examples:
      precast run demo "What is the capital of France?"
      precast run engine "Tell me a story" --max-tokens 200 --temperature 0.7 --seed 1
      precast run engine --input-file prompts.jsonl > answers.jsonl
    """
    if (prompt is None) == (input_file is None):
        raise click.UsageError("give either a PROMPT or --input-file")
    items = _items(prompt, input_file)
    with load_llm(model, quant, num_threads=num_threads, kv_cache_memory=kv_cache_memory) as llm:
        params = sampling_params(llm, **sampling)
        if not raw and llm.has_chat_template:
            items = [item if isinstance(item, list) else [{"role": "user", "content": item}] for item in items]
        if input_file is not None or as_json:
            for output in llm.generate_each(items, params):
                click.echo(json.dumps(output.to_json(), ensure_ascii=False))
            return
        final = None
        for delta in llm.stream(items[0], params):
            click.echo(delta.text, nl=False)
            sys.stdout.flush()
            final = delta
        click.echo()
        if stats and final is not None:
            click.echo(final.stats_line(), err=True)


def sampling_params(llm: Any, stop: tuple[str, ...], **given: Any) -> Any:
    """SamplingParams of the options that were given, over the model's defaults."""
    no_config = given.pop("no_generation_config")
    chosen = {key: value for key, value in given.items() if value is not None and value is not False}
    if stop:
        chosen["stop"] = list(stop)
    return llm.default_params(generation_config=not no_config, **chosen)


def _items(prompt: str | None, input_file: Path | None) -> list[Any]:
    if input_file is None:
        text = sys.stdin.read() if prompt == "-" else prompt
        if not text:
            raise click.UsageError("the prompt is empty")
        return [text]
    items: list[Any] = []
    for number, line in enumerate(input_file.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            item = value["messages"] if "messages" in value else value["prompt"]
        except (ValueError, KeyError, TypeError):
            raise PrecastError(
                f'{input_file}, line {number}: expected {{"prompt": …}} or {{"messages": […]}}'
            ) from None
        items.append(item)
    return items
