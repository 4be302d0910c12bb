"""The real engine as a process: clients, what they draw, what they send, what is counted."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from headrace.testing.engine_process import EngineProcess

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG: dict[str, Any] = {"model": "demo", "prompt": "TTFT is", "max_tokens": 1900, "ignore_eos": True}
QUESTION = [{"role": "user", "content": "What is TTFT?"}]


@pytest.fixture(scope="module")
def client(demo_engine: EngineProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo_engine.url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def openai(demo_engine: EngineProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{demo_engine.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def poll(met: Callable[[], bool], limit_s: float = 20.0) -> None:
    until = time.monotonic() + limit_s
    while not met():
        assert time.monotonic() < until, "not within the deadline"
        time.sleep(0.02)


def gauge(client: httpx.Client, name: str) -> float:
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith(f"{name} ")]
    return float(lines[0].split()[-1])


class TestOpenAiClient:
    def test_chat(self, openai: OpenAI) -> None:
        answer = openai.chat.completions.create(model="demo", messages=QUESTION, temperature=0)  # type: ignore[call-overload]
        assert "first token" in answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop"

    def test_streamed_chat(self, openai: OpenAI) -> None:
        """It names no temperature: the demo model is greedy then."""
        whole = openai.chat.completions.create(model="demo", messages=QUESTION, temperature=0)  # type: ignore[call-overload]
        stream = openai.chat.completions.create(  # type: ignore[call-overload]
            model="demo", messages=QUESTION, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(pieces) == whole.choices[0].message.content
        assert len([piece for piece in pieces if piece]) > 5
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

    def test_an_answer_can_be_sent_back(self, openai: OpenAI) -> None:
        first = openai.chat.completions.create(model="demo", messages=QUESTION, temperature=0)  # type: ignore[call-overload]
        messages = [*QUESTION, first.choices[0].message.model_dump(), {"role": "user", "content": "Why?"}]
        assert openai.chat.completions.create(model="demo", messages=messages, max_tokens=2)  # type: ignore[call-overload]

    def test_completion(self, openai: OpenAI) -> None:
        answer = openai.completions.create(model="demo", prompt="TTFT is", max_tokens=3, temperature=0)
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= 3

    def test_models(self, openai: OpenAI) -> None:
        assert [model.id for model in openai.models.list()] == ["demo"]
        assert openai.models.retrieve("demo").id == "demo"

    def test_refusal(self, openai: OpenAI) -> None:
        with pytest.raises(BadRequestError) as caught:
            openai.chat.completions.create(model="demo", messages=[], temperature=0)
        assert caught.value.param == "messages"


class TestSampling:
    def test_a_seed_repeats_alone_and_in_company(self, client: httpx.Client) -> None:
        body = {"model": "demo", "prompt": "a", "temperature": 2, "seed": 5, "max_tokens": 24, "ignore_eos": True}

        def texts(**fields: Any) -> list[str]:
            choices = client.post(COMPLETIONS, json={**body, **fields}).json()["choices"]
            return [choice["text"] for choice in choices]

        alone, company = texts(), texts(n=3)
        assert alone == texts()
        assert company[0] == alone[0]
        assert len(set(company)) == 3

    def test_no_seed_varies(self, client: httpx.Client) -> None:
        body = {"model": "demo", "prompt": "a", "temperature": 2, "max_tokens": 24, "ignore_eos": True}
        assert len({client.post(COMPLETIONS, json=body).json()["choices"][0]["text"] for _ in range(4)}) > 1

    def test_a_stop_id_ends_and_is_no_text(self, client: httpx.Client) -> None:
        body = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 3}
        three = client.post(CHAT, json=body).json()["choices"][0]["message"]["content"]
        bundle = client.get("/headrace/v1/tokenizer").json()
        vocabulary = json.loads(bundle["tokenizer_json"])["model"]["vocab"]
        word = three.split()[-1]
        stop = vocabulary["Ġ" + word]
        answer = client.post(CHAT, json={**body, "max_tokens": 50, "stop_token_ids": [stop]}).json()["choices"][0]
        assert answer["finish_reason"] == "stop"
        assert answer["message"]["content"] == three[: three.rindex(" " + word)]

    def test_logprobs_of_a_chat(self, openai: OpenAI) -> None:
        ask: dict[str, Any] = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 12}
        ask |= {"logprobs": True, "top_logprobs": 3, "stop": ["token"]}
        choice = openai.chat.completions.create(**ask).choices[0]
        rows = choice.logprobs.content
        assert b"".join(bytes(row.bytes) for row in rows).decode() == choice.message.content
        assert all(row.logprob == row.top_logprobs[0].logprob <= 0 for row in rows)
        assert all(len(row.top_logprobs) == 3 for row in rows)
        chunks = [chunk.choices[0] for chunk in openai.chat.completions.create(**ask, stream=True)]
        streamed = [row for chunk in chunks if chunk.logprobs for row in chunk.logprobs.content]
        assert [row.token for row in streamed] == [row.token for row in rows]

    def test_logprobs_of_a_completion(self, openai: OpenAI) -> None:
        answer = openai.completions.create(model="demo", prompt="TTFT is", max_tokens=6, temperature=0, logprobs=2)
        choice = answer.choices[0]
        assert choice.logprobs is not None
        assert "".join(choice.logprobs.tokens or []) == choice.text
        assert [len(top) for top in choice.logprobs.top_logprobs or []] == [2] * len(choice.logprobs.tokens or [])
        assert (choice.logprobs.text_offset or [])[0] == 0

    def test_echo(self, client: httpx.Client) -> None:
        body = {"model": "demo", "prompt": "TTFT is", "max_tokens": 6, "temperature": 0}
        plain = client.post(COMPLETIONS, json=body).json()["choices"][0]["text"]
        assert client.post(COMPLETIONS, json={**body, "echo": True}).json()["choices"][0]["text"] == "TTFT is" + plain
        ids = {**body, "prompt": [65, 66], "echo": True, "stream": True, "n": 2}
        with client.stream("POST", COMPLETIONS, json=ids) as stream:
            events = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")]
        for index in range(2):
            texts = [row["text"] for event in events for row in event["choices"] if row["index"] == index]
            assert len(texts[0]) == 2

    def test_a_bias_decides_and_an_id_beyond_the_vocabulary_is_refused(self, client: httpx.Client) -> None:
        body = {"model": "demo", "prompt": "a", "max_tokens": 3, "ignore_eos": True, "temperature": 0}
        vocabulary = json.loads(client.get("/headrace/v1/tokenizer").json()["tokenizer_json"])["model"]["vocab"]
        answer = client.post(COMPLETIONS, json={**body, "logit_bias": {str(vocabulary["x"]): 100}}).json()
        assert answer["choices"][0]["text"] == "xxx"
        for field, value in (("logit_bias", {"99999999": 1}), ("stop_token_ids", [99999999])):
            response = client.post(COMPLETIONS, json={**body, field: value})
            assert (response.status_code, response.json()["error"]["param"]) == (400, field)

    def test_least_output(self, client: httpx.Client) -> None:
        body = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 60}
        usual = client.post(CHAT, json=body).json()["usage"]["completion_tokens"]
        assert usual < 60
        longer = client.post(CHAT, json={**body, "min_tokens": usual + 5}).json()["usage"]["completion_tokens"]
        assert longer >= usual + 5

    def test_choices_share_the_prompt(self, client: httpx.Client) -> None:
        prompt = [300 + index % 50 for index in range(200)]
        body = {"model": "demo", "prompt": prompt, "max_tokens": 4, "n": 3, "temperature": 1, "ignore_eos": True}
        before = gauge(client, "headrace_engine_cached_tokens_total")
        answer = client.post(COMPLETIONS, json={**body, "headrace": {"salt": "0b"}}).json()
        assert len(answer["choices"]) == 3
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert gauge(client, "headrace_engine_cached_tokens_total") == before


class TestBodies:
    def test_ten_megabytes(self, client: httpx.Client) -> None:
        response = client.post(CHAT, content=b"x" * 10_000_000)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"
        assert client.get("/health").status_code == 200

    def test_streams_go_on_while_a_megabyte_of_text_is_tokenized(self, client: httpx.Client) -> None:
        """By the route that counts whatever it is given: of a prompt that long no token need be counted."""
        body = {"model": "demo", "prompt": "What does the scheduler do with a long prompt? " * 20_000}
        counted: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: counted.append(client.post("/tokenize", json=body)))
        drawn = {"temperature": 1, "seed": 1}  # so that each token is told
        with client.stream("POST", COMPLETIONS, json={**LONG, **drawn, "stream": True}) as stream:
            events = stream.iter_raw()
            next(events)
            thread.start()
            during = 0  # events that came before the answer
            for _ in events:
                during += 1
                if counted:
                    break
        thread.join()
        assert during > 10
        assert counted[0].status_code == 200
        assert counted[0].json()["count"] > 100_000

    def test_an_id_in_use_is_refused(self, client: httpx.Client) -> None:
        hint = {"headrace": {"id": "twice"}}
        with client.stream("POST", COMPLETIONS, json={**LONG, **hint, "stream": True}) as stream:
            events = stream.iter_raw()
            next(events)
            response = client.post(COMPLETIONS, json={**LONG, **hint})
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "headrace.id"
        poll(lambda: client.post(COMPLETIONS, json={**LONG, **hint, "max_tokens": 1}).status_code == 200)

    def test_a_body_that_never_ends_frees_its_request(self, demo_engine: EngineProcess, client: httpx.Client) -> None:
        with socket.create_connection(("127.0.0.1", demo_engine.port)) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
            poll(lambda: gauge(client, "headrace_engine_open_requests") == 1)
        poll(lambda: gauge(client, "headrace_engine_open_requests") == 0)
        assert client.post(COMPLETIONS, json={**LONG, "max_tokens": 1}).status_code == 200


class TestMetrics:
    def test_one_ttft_a_request_and_gauges_return_to_zero(self, client: httpx.Client) -> None:
        def value(name: str) -> float:
            return gauge(client, name)

        poll(lambda: value("headrace_engine_running") == 0)
        before = value("headrace_engine_ttft_seconds_count")
        prompt = [65 + index % 9 for index in range(700)]  # several chunks
        client.post(COMPLETIONS, json={**LONG, "prompt": prompt, "max_tokens": 4})
        client.post(COMPLETIONS, json={**LONG, "max_tokens": 2, "n": 3})
        assert value("headrace_engine_ttft_seconds_count") == before + 2
        poll(lambda: value("headrace_engine_running") == value("headrace_engine_queued_tokens") == 0)

    def test_aliases_say_the_same(self, client: httpx.Client) -> None:
        client.post(COMPLETIONS, json={**LONG, "max_tokens": 2})
        poll(lambda: gauge(client, "headrace_engine_running") == 0)
        text = client.get("/metrics").text
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        for alias, name in (
            ("num_requests_running", "running"),
            ("num_requests_waiting", "waiting"),
            ("generation_tokens_total", "generated_tokens_total"),
            ("prefix_cache_queries_total", "prefix_cache_asked_tokens_total"),
            ("time_to_first_token_seconds_count", "ttft_seconds_count"),
        ):
            assert samples[f'vllm:{alias}{{model_name="demo"}}'] == samples[f"headrace_engine_{name}"]
        assert (
            samples['vllm:request_success_total{finished_reason="ok",model_name="demo"}']
            == (samples['headrace_engine_requests_total{outcome="ok"}'])
        )
        assert float(samples['vllm:kv_cache_usage_perc{model_name="demo"}']) == 0.0
        assert (
            samples['vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="demo"}']
            == (samples["headrace_engine_ttft_seconds_count"])
        )

    def test_outcomes(self, client: httpx.Client) -> None:
        client.post(CHAT, content=b"{")
        text = client.get("/metrics").text
        assert 'headrace_engine_requests_total{outcome="ok"}' in text
        assert 'headrace_engine_requests_total{outcome="invalid_request"}' in text
