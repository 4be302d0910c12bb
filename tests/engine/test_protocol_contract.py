"""engine/PROTOCOL.md as a table: the fake engine and the real one pass the same cases."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import pytest

from headrace.testing.background import Background
from headrace.testing.fake_engine import FakeEngine
from headrace_wire.chat import ChatTokenizer
from headrace_wire.protocol import PAGE_TOKENS, PROTOCOL, EngineState, TokenizerBundle

CONTEXT = 512  # tokens, of both engines
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
DEADLINE_S = 20.0
FREED_S = 10.0  # ten times the promise, for a loaded machine; test_api_bounds holds the promise itself


@dataclass(frozen=True)
class Speaker:
    """An engine, fake or real, and a client for it."""

    client: httpx.Client
    model: str

    def chat(self, text: str = "What is TTFT?", **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": text}]
        return self.client.post(CHAT, json={"model": self.model, "messages": messages, "temperature": 0, **fields})

    def complete(self, prompt: Any = "TTFT is", **fields: Any) -> httpx.Response:
        return self.client.post(COMPLETIONS, json={"model": self.model, "prompt": prompt, "temperature": 0, **fields})

    def state(self) -> EngineState:
        return msgspec.json.decode(self.client.get("/headrace/v1/state").content, type=EngineState)

    def until(self, met: Callable[[EngineState], bool]) -> EngineState:
        """The first report that meets a condition."""
        until = time.monotonic() + DEADLINE_S
        while not met(state := self.state()):
            assert time.monotonic() < until, f"not within {DEADLINE_S} s: {state}"
            time.sleep(0.02)
        return state


@pytest.fixture(params=["fake", "real"], scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[Speaker]:
    with Background() as background:
        if request.param == "fake":
            fake = FakeEngine(model="m", max_sequences=2, max_tokens=CONTEXT, tokens_per_s=300, total_pages=16)
            url = background.enter(fake).url
        else:
            url = request.getfixturevalue("protocol_engine").url
        with httpx.Client(base_url=url, timeout=DEADLINE_S) as client:
            yield Speaker(client, "m")


@dataclass
class Stream:
    """What a stream brought."""

    events: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("choices")]

    def text(self, index: int = 0) -> str:
        rows = [row for chunk in self.chunks for row in chunk["choices"] if row["index"] == index]
        return "".join(row["text"] if "text" in row else row["delta"].get("content", "") for row in rows)

    def finishes(self, index: int = 0) -> list[str]:
        rows = [row for chunk in self.chunks for row in chunk["choices"] if row["index"] == index]
        return [row["finish_reason"] for row in rows if row["finish_reason"] is not None]


def read(response: httpx.Response) -> Stream:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    stream = Stream()
    for block in response.text.split("\n\n"):
        if not block:
            continue
        assert block.startswith("data: "), block
        assert not stream.done, "something came after [DONE]"
        data = block.removeprefix("data: ")
        stream.done = data == "[DONE]"
        if not stream.done:
            stream.events.append(json.loads(data))
    return stream


ROUTES = pytest.mark.parametrize("route", ["chat", "complete"])


class TestReadOnly:
    def test_health_and_ready(self, engine: Speaker) -> None:
        assert engine.client.get("/health").status_code == 200
        assert engine.client.get("/ready").status_code == 200

    def test_state(self, engine: Speaker) -> None:
        state = engine.until(lambda state: state.running == state.waiting == 0)
        assert state.protocol == PROTOCOL
        assert state.model.name == "m"
        assert state.model.max_tokens == CONTEXT
        assert state.model.max_sequences == 2
        assert state.model.page_tokens == PAGE_TOKENS
        assert len(bytes.fromhex(state.cache_root)) == 32
        assert state.total >= CONTEXT // PAGE_TOKENS
        assert 0 <= state.free + state.evictable <= state.total
        assert state.kv_groups[0].bytes_per_token > 0
        assert not state.draining

    def test_state_grows(self, engine: Speaker) -> None:
        first = engine.state()
        later = engine.until(lambda state: state.seq > first.seq)
        assert (later.instance, later.epoch, later.cache_root) == (first.instance, first.epoch, first.cache_root)

    def test_info_agrees_with_state(self, engine: Speaker) -> None:
        info, state = engine.client.get("/headrace/v1/info").json(), engine.state()
        assert info["model"] == msgspec.to_builtins(state.model)
        assert info["total_pages"] == state.total

    def test_tokenizer_is_what_the_state_names(self, engine: Speaker) -> None:
        data = engine.client.get("/headrace/v1/tokenizer").content
        bundle = msgspec.json.decode(data, type=TokenizerBundle)
        assert bundle.digest == engine.state().model.tokenizer
        tokenizer = ChatTokenizer.from_bundle(bundle)
        count = len(tokenizer.encode_chat([{"role": "user", "content": "Hi é 🎉"}]))
        assert engine.chat("Hi é 🎉", max_tokens=1).json()["usage"]["prompt_tokens"] == count

    def test_models(self, engine: Speaker) -> None:
        (model,) = engine.client.get("/v1/models").json()["data"]
        assert (model["id"], model["object"], model["max_model_len"]) == ("m", "model", CONTEXT)

    def test_metrics(self, engine: Speaker) -> None:
        response = engine.client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        assert "headrace_engine_running" in response.text
        assert "headrace_engine_waiting" in response.text


class TestGeneration:
    def test_chat(self, engine: Speaker) -> None:
        body = engine.chat().json()
        assert body["object"] == "chat.completion"
        assert body["model"] == "m"
        (choice,) = body["choices"]
        assert choice["message"]["role"] == "assistant"
        assert choice["message"]["content"]
        assert choice["finish_reason"] == "stop"
        usage = body["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= 0

    def test_completion(self, engine: Speaker) -> None:
        body = engine.complete(max_tokens=2, ignore_eos=True).json()
        assert body["object"] == "text_completion"
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == 2

    def test_token_ids_as_prompt(self, engine: Speaker) -> None:
        body = engine.complete([65, 66, 67], max_tokens=2, ignore_eos=True).json()
        assert body["usage"]["prompt_tokens"] == 3

    @ROUTES
    def test_stream_equals_whole(self, engine: Speaker, route: str) -> None:
        whole = getattr(engine, route)(max_tokens=24).json()
        stream = read(getattr(engine, route)(max_tokens=24, stream=True))
        (choice,) = whole["choices"]
        assert stream.text() == (choice["text"] if route == "complete" else choice["message"]["content"])
        assert stream.finishes() == [choice["finish_reason"]]
        assert stream.done
        assert all("finish_reason" in row for chunk in stream.chunks for row in chunk["choices"])
        assert len({event["id"] for event in stream.events}) == 1

    def test_chat_stream_opens_with_the_role(self, engine: Speaker) -> None:
        stream = read(engine.chat(max_tokens=2, stream=True))
        assert stream.chunks[0]["object"] == "chat.completion.chunk"
        assert stream.chunks[0]["choices"][0]["delta"]["role"] == "assistant"

    @pytest.mark.parametrize(
        ("options", "asked"),
        [({"include_usage": True}, True), ({"include_usage": False}, False), ({}, False), (None, False)],
        ids=["asked", "declined", "empty-options", "null"],
    )
    def test_usage_chunk(self, engine: Speaker, options: Any, asked: bool) -> None:
        stream = read(engine.chat(max_tokens=2, stream=True, stream_options=options))
        with_usage = [event for event in stream.events if "usage" in event]
        assert len(with_usage) == int(asked)
        if asked:
            assert stream.events[-1] == with_usage[0]
            assert with_usage[0]["choices"] == []
            assert with_usage[0]["usage"]["completion_tokens"] == 2

    def test_stop_string_ends_the_text(self, engine: Speaker) -> None:
        whole = engine.chat().json()["choices"][0]["message"]["content"]
        stop = whole[2:5]
        body = engine.chat(stop=[stop, "never-said"]).json()
        stream = read(engine.chat(stop=stop, stream=True))
        expected = whole[: whole.index(stop)]
        assert body["choices"][0]["message"]["content"] == stream.text() == expected
        assert body["choices"][0]["finish_reason"] == "stop"
        assert stream.finishes() == ["stop"]

    def test_several_choices(self, engine: Speaker) -> None:
        body = engine.chat(n=3, max_tokens=4, ignore_eos=True).json()
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        assert body["usage"]["completion_tokens"] == 12
        stream = read(engine.chat(n=3, max_tokens=4, ignore_eos=True, stream=True))
        texts = [choice["message"]["content"] for choice in body["choices"]]
        assert [stream.text(index) for index in range(3)] == texts
        assert [stream.finishes(index) for index in range(3)] == [["length"]] * 3

    def test_no_limit_means_the_remaining_context(self, engine: Speaker) -> None:
        body = engine.complete([65] * (CONTEXT - 20), ignore_eos=True).json()
        assert body["usage"]["completion_tokens"] == 20
        assert body["choices"][0]["finish_reason"] == "length"

    def test_a_limit_beyond_the_context_is_cut(self, engine: Speaker) -> None:
        body = engine.complete([65] * (CONTEXT - 5), ignore_eos=True, max_tokens=10_000).json()
        assert body["usage"]["completion_tokens"] == 5

    def test_text_parts_are_joined(self, engine: Speaker) -> None:
        parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": " TTFT?"}]
        messages = [{"role": "user", "content": parts}]
        body = {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 8}
        joined = engine.client.post(CHAT, json=body).json()
        assert joined["choices"][0]["message"] == engine.chat(max_tokens=8).json()["choices"][0]["message"]

    def test_ignored_fields(self, engine: Speaker) -> None:
        assert engine.chat(max_tokens=1, user="u", metadata={"a": "b"}, store=False).status_code == 200

    def test_null_is_absent(self, engine: Speaker) -> None:
        fields: dict[str, Any] = dict.fromkeys(("seed", "stop", "n", "stream", "top_p", "max_tokens", "headrace"))
        fields.pop("headrace")
        assert engine.chat(**{**fields, "max_completion_tokens": 1}).status_code == 200


def _messages(content: Any) -> dict[str, Any]:
    return {"model": "m", "messages": content}


USER = [{"role": "user", "content": "hi"}]
BAD_CHATS: dict[str, tuple[Any, str | None]] = {
    "no-model": ({"messages": USER}, "model"),
    "model-not-text": ({"model": 1, "messages": USER}, "model"),
    "no-messages": ({"model": "m"}, "messages"),
    "empty-messages": (_messages([]), "messages"),
    "messages-text": (_messages("hi"), "messages"),
    "unknown-field": ({**_messages(USER), "colour": "red"}, "colour"),
    "zero-max-tokens": ({**_messages(USER), "max_tokens": 0}, "max_tokens"),
    "negative-max-completion-tokens": ({**_messages(USER), "max_completion_tokens": -1}, "max_completion_tokens"),
    "max-tokens-text": ({**_messages(USER), "max_tokens": "5"}, "max_tokens"),
    "max-tokens-fraction": ({**_messages(USER), "max_tokens": 1.5}, "max_tokens"),
    "temperature-high": ({**_messages(USER), "temperature": 2.5}, "temperature"),
    "temperature-negative": ({**_messages(USER), "temperature": -1}, "temperature"),
    "top-p-zero": ({**_messages(USER), "top_p": 0}, "top_p"),
    "n-zero": ({**_messages(USER), "n": 0}, "n"),
    "n-many": ({**_messages(USER), "n": 1000}, "n"),
    "stop-number": ({**_messages(USER), "stop": 1}, "stop"),
    "stream-text": ({**_messages(USER), "stream": "yes"}, "stream"),
    "unknown-stream-option": (
        {**_messages(USER), "stream": True, "stream_options": {"x": 1}},
        "stream_options.x",
    ),
    "salt-not-hex": ({**_messages(USER), "headrace": {"salt": "xyz"}}, "headrace.salt"),
    "hint-of-a-wrong-type": ({**_messages(USER), "headrace": {"priority": "high"}}, "headrace.priority"),
    "not-an-object": ([1], None),
}
BAD_BYTES = {
    "empty": b"",
    "not-json": b"{",
    "nan": b'{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":NaN}',
    "huge-number": b'{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":1e999}',
    "invalid-utf8": b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "lone-surrogate": b'{"model":"m","messages":[{"role":"user","content":"\\ud800 x"}]}',
    "nested-arrays": b'{"model":"m","metadata":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
    "nested-objects": b'{"model":"m","metadata":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
}


class TestRefusals:
    @pytest.mark.parametrize(("body", "param"), BAD_CHATS.values(), ids=BAD_CHATS)
    def test_the_field_is_named(self, engine: Speaker, body: Any, param: str | None) -> None:
        response = engine.client.post(CHAT, json=body)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert (error["param"], error["code"], error["type"]) == (param, "invalid_request", "invalid_request_error")
        assert param is None or error["message"].startswith(param)

    @pytest.mark.parametrize("data", BAD_BYTES.values(), ids=BAD_BYTES)
    def test_bytes_that_are_no_json(self, engine: Speaker, data: bytes) -> None:
        response = engine.client.post(CHAT, content=data)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["code"] == "invalid_request"
        assert engine.client.get("/health").status_code == 200

    def test_prompt_longer_than_the_context(self, engine: Speaker) -> None:
        response = engine.complete([65] * CONTEXT)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert str(CONTEXT) in error["message"]
        response = engine.chat("word " * 2000)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        numbers = [int(word) for word in error["message"].replace(";", " ").split() if word.isdigit()]
        assert CONTEXT in numbers
        assert max(numbers) > CONTEXT

    def test_another_model(self, engine: Speaker) -> None:
        response = engine.client.post(CHAT, json={"model": "other", "messages": USER})
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
        assert response.json()["error"]["param"] == "model"

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [("GET", "/nowhere", 404), ("POST", "/v1/nowhere", 404), ("GET", CHAT, 405), ("POST", "/health", 405)],
        ids=["get", "post", "get-where-post", "post-where-get"],
    )
    def test_wrong_ways(self, engine: Speaker, method: str, path: str, status: int) -> None:
        response = engine.client.request(method, path)
        assert response.status_code == status
        assert response.json()["error"]["message"]


class TestHints:
    def test_the_id_is_used(self, engine: Speaker) -> None:
        body = engine.chat(max_tokens=1, headrace={"id": "req-7", "holder": "g1"}).json()
        assert body["id"] == "chatcmpl-req-7"

    def test_unknown_hints_are_ignored(self, engine: Speaker) -> None:
        assert engine.chat(max_tokens=1, headrace={"from_the_future": 1}).status_code == 200

    def test_holders_and_queue(self, engine: Speaker) -> None:
        """Two run, one waits; all are charged to the gateway that sent them, and nothing stays."""
        engine.until(lambda state: not state.holders)
        hints = [{"holder": "g1"}, {"holder": "g1"}, {"holder": "g2"}]
        with closing(_Parallel(engine, hints)) as parallel:
            state = engine.until(lambda state: state.running == 2 and state.waiting == 1)
            assert sum(held.requests for held in state.holders.values()) == 3
            assert sum(held.pages for held in state.holders.values()) > 0
            assert set(state.holders) == {"g1", "g2"}
            assert state.oldest_waiting_s is not None
            assert state.queued_tokens > 0
            assert parallel.close() == [200] * 3
        state = engine.until(lambda state: state.running == state.waiting == 0 and not state.holders)
        assert state.free + state.evictable == state.total
        assert state.queued_tokens == 0

    def test_waiting_longer_than_is_left(self, engine: Speaker) -> None:
        with closing(_Parallel(engine, [{"holder": "g1"}] * 2)):
            engine.until(lambda state: state.running == 2)
            response = engine.chat(headrace={"left_ms": 100.0})
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "deadline_exceeded"

    def test_a_repeated_prefix_is_cached_within_a_salt(self, engine: Speaker) -> None:
        prompt = [70 + index % 50 for index in range(3 * PAGE_TOKENS)]

        def cached(salt: str) -> int:
            body = engine.complete(prompt, max_tokens=1, headrace={"salt": salt}).json()
            return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [cached("aa"), cached("aa"), cached("bb"), cached("aa")] == [0, 128, 0, 128]


class _Parallel:
    """Long requests that run side by side until joined or closed."""

    def __init__(self, engine: Speaker, hints: list[dict[str, Any]]):
        self._statuses: list[int | None] = [None] * len(hints)
        url = str(engine.client.base_url)

        def one(index: int, hint: dict[str, Any]) -> None:
            body = {"model": "m", "prompt": "TTFT is", "max_tokens": 450, "ignore_eos": True, "headrace": hint}
            self._statuses[index] = httpx.post(f"{url}{COMPLETIONS}", json=body, timeout=60).status_code

        self._threads = [threading.Thread(target=one, args=pair) for pair in enumerate(hints)]
        for thread in self._threads:
            thread.start()

    def close(self) -> list[int | None]:
        for thread in self._threads:
            thread.join()
        return self._statuses


class TestLeaving:
    @pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
    def test_a_client_that_leaves_frees_everything(self, engine: Speaker, stream: bool) -> None:
        engine.until(lambda state: state.running == 0)
        body = {"model": "m", "prompt": "TTFT is", "max_tokens": 480, "ignore_eos": True, "stream": stream, "n": 2}
        with httpx.Client(base_url=engine.client.base_url, timeout=httpx.Timeout(10, read=0.3)) as client:
            try:
                with client.stream("POST", COMPLETIONS, json=body) as response:
                    next(response.iter_raw())
            except httpx.ReadTimeout:
                assert not stream
        left = time.monotonic()
        state = engine.until(lambda state: state.running == state.waiting == 0)
        assert time.monotonic() - left < FREED_S
        assert not state.holders
        assert state.free + state.evictable == state.total
