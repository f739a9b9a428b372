"""The Python API on a tiny engine: answers are the model's, streams are wholes, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from precast import LLM, AsyncLLM, RequestOutput, SamplingParams
from precast.errors import EngineError, QueueFullError, RequestError, SourceError
from precast.runtime.llm import LLM as EngineLLM
from precast.runtime.text.tokenizer import Tokenizer
from tests.executors import held
from tests.steps import make_engine
from tests.tiny import logits_of, tiny_llama
from tests.unit.test_tokenizer import byte_level

TEMPLATE = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{{- '<|im_start|>assistant\n' if add_generation_prompt }}{{ mood | default('') }}"""
PROMPTS: list[Any] = ["The quick brown", "fox 12", [5, 6, 7], "é中文 🙂" * 30, [{"role": "user", "content": "hi"}]]
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("llm")
    rust = byte_level()
    model = tiny_llama(folder / "hf", vocab_size=rust.get_vocab_size(with_added_tokens=True))
    rust.save(str(folder / "hf" / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "hf" / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "hf" / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "hf" / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    return make_engine(folder / "hf", folder, max_seq_len=512), model


@pytest.fixture(scope="module")
def engine(made: tuple[Path, LlamaForCausalLM]) -> Path:
    return made[0]


@pytest.fixture(scope="module")
def llm(engine: Path) -> Iterator[LLM]:
    with LLM(engine) as llm:
        yield llm


def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within a minute")


def whole(parts: list[RequestOutput]) -> tuple[str, list[int]]:
    return "".join(p.text for p in parts), [t for p in parts for t in p.token_ids]


@pytest.mark.parametrize("eos", ["</s>", 1.5, True, {}, [2, "a"], [[2]], 10**400])
def test_an_end_token_that_is_none_is_refused(eos: Any, engine: Path, tmp_path: Path) -> None:
    """Answers would not end."""
    shutil.copytree(engine, tmp_path / "engine")
    (tmp_path / "engine/generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(EngineError, match="is no token id"):
        LLM(tmp_path / "engine")


def test_greedy_answers_are_transformers(llm: LLM, made: tuple[Path, LlamaForCausalLM]) -> None:
    for prompt in PROMPTS:
        ids = llm.encode(prompt)
        output = llm.generate([prompt], GREEDY)[0]
        assert output.prompt_token_ids == ids
        logits = logits_of(made[1], ids + output.token_ids)[len(ids) - 1 : -1]
        assert output.token_ids == logits.argmax(axis=1).tolist()
        assert output.finish_reason == "length"


def test_a_list_of_prompts_is_answered_in_its_order_as_each_alone(llm: LLM) -> None:
    every = [SamplingParams(max_tokens=20, temperature=1.5, seed=i, ignore_eos=True, logprobs=3) for i in range(5)]
    alone = [llm.generate([p], s)[0] for p, s in zip(PROMPTS, every, strict=True)]
    together = llm.generate(PROMPTS, every)
    for a, b in zip(alone, together, strict=True):
        assert (a.text, a.token_ids, a.logprobs, a.seed) == (b.text, b.token_ids, b.logprobs, b.seed)
    assert len({tuple(o.token_ids) for o in together}) == len(together)


def test_chunks_batches_and_threads_leave_bits_alone(llm: LLM, engine: Path) -> None:
    params = SamplingParams(max_tokens=12, temperature=1, seed=3, ignore_eos=True, logprobs=5)
    expected = llm.generate(PROMPTS, params)
    for options in ({"num_threads": 1, "max_num_tokens": 32}, {"num_threads": 3, "max_batch_size": 2}):
        with LLM(engine, **options) as other:
            for a, b in zip(expected, other.generate(PROMPTS, params), strict=True):
                assert (a.token_ids, a.logprobs) == (b.token_ids, b.logprobs)


def test_a_stream_concatenates_to_the_whole(llm: LLM, engine: Path) -> None:
    for prompt in PROMPTS:
        output = llm.generate([prompt], GREEDY)[0]
        parts = list(llm.stream(prompt, GREEDY))
        assert whole(parts) == (output.text, output.token_ids)
        assert [p.finish_reason for p in parts[:-1]] == [None] * (len(parts) - 1)
        assert output.text == Tokenizer.from_folder(engine).decode(output.token_ids)


def test_a_chat_is_its_rendered_text(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert llm.has_chat_template
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert llm.encode(messages) == llm.encode(text)
    assert llm.chat(messages, GREEDY).token_ids == llm.generate(text, GREEDY)[0].token_ids
    assert llm.chat(messages, GREEDY, mood="x").prompt_token_ids == llm.encode(text + "x")


def test_a_stop_string_from_the_text_ends_it(llm: LLM) -> None:
    output = llm.generate("The quick", GREEDY)[0]
    found = re.search("[ -~]{3}", output.text[1:])  # whole characters: what shows as U+FFFD is other bytes
    assert found
    stop = found[0]
    cut = llm.generate("The quick", SamplingParams(max_tokens=24, ignore_eos=True, stop=stop))[0]
    assert cut.text == output.text[: output.text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.to_json()["stop_reason"] == stop


def test_all_threads_share_one_engine(llm: LLM) -> None:
    expected = [llm.generate([p], GREEDY)[0].token_ids for p in PROMPTS]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: llm.generate([PROMPTS[i % 5]], GREEDY)[0].token_ids, range(40)))
    assert answers == expected * 8


def test_a_closed_or_forgotten_stream_is_cancelled(llm: LLM) -> None:
    long = SamplingParams(max_tokens=480, ignore_eos=True)
    stream = llm.stream("fox", long)
    next(stream)
    stream.close()
    assert list(stream) == []
    forgotten = llm.stream("fox", long)
    del forgotten
    until(lambda: llm.stats().running == 0 and llm.stats().available_pages == llm.stats().num_pages)


@pytest.mark.parametrize("other", [{"max_tokens": 3}, ["a"], 3, "max_tokens"], ids=repr)
def test_params_and_options_of_another_type_are_refused(other: Any, llm: LLM) -> None:
    with pytest.raises(RequestError, match="must be SamplingParams"):
        llm.generate(["a"], other)
    with pytest.raises(RequestError, match="must be SamplingParams"):
        llm.stream("a", other)
    with pytest.raises(RequestError, match="must be RequestOptions"):
        llm.generate(["a"], GREEDY, options=other)
    with pytest.raises(RequestError, match="must be RequestOptions"):
        llm.stream("a", GREEDY, options=other)


def test_a_full_queue_is_told_by_its_type_for_many_prompts_too(engine: Path) -> None:
    with LLM(engine, max_queued_requests=2) as llm:
        llm.pause()
        with pytest.raises(QueueFullError, match="prompt 2: the queue is full") as refused:
            llm.generate(["a", "b", "c"], GREEDY)
        assert refused.value.prompt_index == 2


@pytest.mark.parametrize("option", ["max_batch_size", "max_num_tokens"])
def test_more_than_the_engine_was_built_for_is_refused(option: Any, engine: Path) -> None:
    with pytest.raises(EngineError, match=f"{option} is 100000, and this engine was built for"):
        LLM(engine, **{option: 100000})


def test_statistics_show_what_they_hold(engine: Path) -> None:
    with LLM(engine, kv_events=9) as llm:
        llm.generate("the quick brown fox", GREEDY)
        assert re.match(r"ExecutorStats\(waiting=0, running=0, .*alive=True, error=.*\)$", repr(llm.stats()))
        assert re.search(r"kv_cache_stats=KvCacheStats\(max_num_blocks=\d+", repr(llm.iteration_stats()[0][-1]))
        assert "max_seq_len=512" in repr(llm.limits)
        assert repr(llm.kv_events()[0][0]).startswith("CacheEvent(kind='stored'")


def test_one_refused_prompt_is_named_and_the_others_are_cancelled(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"prompt 1: the prompt is empty") as refused:
        llm.generate(["a", []], GREEDY)
    assert (refused.value.prompt_index, str(refused.value)) == (1, f"prompt 1: {refused.value.reason}")
    with pytest.raises(RequestError, match="512 tokens"):
        llm.generate([5] * 512, GREEDY)
    with pytest.raises(RequestError, match="2 prompts and 1 params"):
        llm.generate(["a", "b"], [GREEDY])
    until(lambda: llm.stats().running == 0)


@pytest.mark.parametrize("prompt", [3.5, None, {"role": "user"}, ["a", 1], "\ud800", [[{"content": 1}]], [2**31]])
def test_what_is_no_prompt_is_refused_in_one_sentence(llm: LLM, prompt: Any) -> None:
    with pytest.raises(RequestError):
        llm.generate([prompt], GREEDY)


def test_another_chat_template_may_be_given(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("{{ messages[0].content }}{{ mood }}")
    messages = [{"role": "user", "content": "hi"}]
    with LLM(engine, chat_template=tmp_path / "mine") as llm:
        assert llm.chat(messages, GREEDY, mood="x").prompt_token_ids == llm.encode("hix")
        (tmp_path / "mine").write_text("{% for x in range(9999) %}{% for y in range(9999) %}{% endfor %}{% endfor %}")
    with LLM(engine, chat_template=tmp_path / "mine") as llm, pytest.raises(RequestError, match="loop for ever"):
        llm.chat(messages, GREEDY)
    with pytest.raises(SourceError, match="neither a file nor the name"):
        LLM(engine, chat_template="mine")


def test_steps_cache_and_tokens_can_be_watched(engine: Path) -> None:
    with LLM(engine, kv_events=100) as llm:
        (output,) = llm.generate([[*range(1, 40)]], GREEDY)
        streamed = [*llm.stream([*range(1, 40)], GREEDY)]
        steps, lost = llm.iteration_stats()
        assert (len(steps), lost) == (llm.stats().steps, 0)
        assert steps[-1].kv_cache_stats.reused_blocks > 0
        events, lost = llm.kv_events()
        assert ("stored", [*range(1, 33)], 0) in [(event.kind, event.tokens, lost) for event in events]
    assert output.num_preemptions == 0
    assert len(output.outputs[0].token_latencies) == len(output.token_ids)
    assert output.outputs[0].token_latencies[0] == output.timings.first_token
    assert sum(len(part.outputs[0].token_latencies) for part in streamed) == len(output.token_ids)


def test_closing_answers_who_waits(engine: Path) -> None:
    llm = LLM(engine, max_batch_size=1)
    llm.pause()
    answers: list[RequestOutput] = []
    waiter = threading.Thread(
        target=lambda: answers.extend(llm.generate(["a"] * 40, SamplingParams(max_tokens=400, ignore_eos=True)))
    )
    waiter.start()
    until(lambda: llm.stats().queued_requests == 40)
    llm.resume()
    until(lambda: llm.stats().steps > 0)
    assert held(llm).waiting > 0
    llm.close()
    llm.close()
    waiter.join(60)
    assert not waiter.is_alive()
    assert len(answers) == 40
    assert answers[-1].finish_reason == "cancelled"
    with pytest.raises(RequestError, match="shut down"):
        llm.generate("a", GREEDY)


def test_a_drain_lets_requests_finish(engine: Path) -> None:
    llm = LLM(engine)
    stream = llm.stream("a", GREEDY)
    llm.close(drain=True, timeout=60)
    assert len(whole(list(stream))[1]) == 24


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "del llm", "llm.close()"])
def test_the_interpreter_ends_cleanly_whatever_is_left_open(engine: Path, end: str) -> None:
    script = f"""
from precast import LLM, SamplingParams
llm = LLM({str(engine)!r})
stream = llm.stream("a", SamplingParams(max_tokens=500, ignore_eos=True))
next(stream)
{end}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (3 if "Exit" in end else 0, "")


def test_asyncio_twins_give_the_same(llm: LLM, engine: Path) -> None:
    expected = llm.generate(PROMPTS, GREEDY)

    async def main(other: AsyncLLM) -> None:
        async def stream(prompt: Any) -> list[RequestOutput]:
            return [part async for part in other.stream(prompt, GREEDY)]

        every, *streams = await asyncio.gather(other.generate(PROMPTS, GREEDY), *map(stream, PROMPTS))
        assert [o.token_ids for o in every] == [o.token_ids for o in expected]
        assert [whole(parts) for parts in streams] == [(o.text, o.token_ids) for o in expected]
        chat = await other.chat([{"role": "user", "content": "hi"}], GREEDY)
        assert chat.token_ids == expected[4].token_ids
        with pytest.raises(RequestError, match="prompt 0: the prompt is empty"):
            await other.generate([[], "a"])

    other = AsyncLLM(engine)
    asyncio.run(main(other))
    asyncio.run(main(other))  # another loop, after the first has ended
    asyncio.run(other.close())


def test_cancelling_a_task_cancels_its_request(engine: Path) -> None:
    async def main() -> None:
        long = SamplingParams(max_tokens=480, ignore_eos=True)
        async with AsyncLLM(engine) as llm:
            llm.pause()
            task = asyncio.create_task(llm.generate(["a", "b"], long))
            while llm.stats().queued_requests < 2:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while llm.stats().finished < 2:
                await asyncio.sleep(0.001)
            assert llm.stats().steps == 0
            llm.resume()
            stream = llm.stream("a", long)
            await anext(stream)
            await stream.aclose()
            while llm.stats().running > 0:
                await asyncio.sleep(0.001)
            assert llm.stats().available_pages == llm.stats().num_pages
            llm.pause()
            waiting = asyncio.create_task(llm.chat([{"role": "user", "content": "hi"}], long))
            while llm.stats().queued_requests == 0:
                await asyncio.sleep(0.001)
            await llm.close()
            assert (await waiting).finish_reason == "cancelled"

    asyncio.run(asyncio.wait_for(main(), 120))


def test_folders_that_are_no_engine_are_refused(engine: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="there is no engine folder"):
        EngineLLM(tmp_path / "none")
    with pytest.raises(EngineError, match="is not a precast engine"):
        EngineLLM(tmp_path)
    config = json.loads((engine / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"format_version": 99}))
    with pytest.raises(EngineError, match="format 99"):
        EngineLLM(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match=r"has no rank0\.engine"):
        EngineLLM(tmp_path)
    with pytest.raises(EngineError, match="one KV page of every layer takes"):
        EngineLLM(engine, kv_cache_memory=1000)
