"""What users of OpenAI-compatible engines send and expect back, against the real engine as a process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headrace.testing.engine_process import EngineProcess

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
QUESTION = [{"role": "user", "content": "What is TTFT?"}]
PROMPTS = ["TTFT is", "A queue is", "The scheduler"]
NEAR = 0.15  # natural logarithms, between bfloat16 passes of different shapes


@pytest.fixture(scope="module")
def client(demo_engine: EngineProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo_engine.url, timeout=60) as client:
        yield client


def post(client: httpx.Client, path: str, **fields: Any) -> dict[str, Any]:
    response = client.post(path, json={"model": "demo", "temperature": 0, **fields})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def events(client: httpx.Client, path: str, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": "demo", "temperature": 0, "stream": True, **fields}
    lines = client.post(path, json=body).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def rows(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    return [row for chunk in chunks for row in chunk["choices"] if row["index"] == index]


def ids(client: httpx.Client, text: str) -> list[int]:
    found: list[int] = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return found


class TestSeveralPrompts:
    @pytest.mark.parametrize("fields", [{}, {"temperature": 1.5, "seed": 3}], ids=["greedy", "seeded"])
    @pytest.mark.parametrize("as_ids", [False, True], ids=["texts", "ids"])
    def test_each_as_if_alone(self, client: httpx.Client, fields: dict[str, Any], as_ids: bool) -> None:
        prompts: list[Any] = [ids(client, text) for text in PROMPTS] if as_ids else PROMPTS
        fields = {"max_tokens": 6, "ignore_eos": True, "n": 2, **fields}
        alone = [post(client, COMPLETIONS, prompt=prompt, **fields) for prompt in prompts]
        together = post(client, COMPLETIONS, prompt=prompts, **fields)
        expected = [choice["text"] for answer in alone for choice in answer["choices"]]
        assert [choice["text"] for choice in together["choices"]] == expected
        assert [choice["index"] for choice in together["choices"]] == list(range(6))
        for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert together["usage"][field] == sum(answer["usage"][field] for answer in alone)

    def test_streamed(self, client: httpx.Client) -> None:
        whole = post(client, COMPLETIONS, prompt=PROMPTS, max_tokens=5, stop=[" the"])
        chunks = events(client, COMPLETIONS, prompt=PROMPTS, max_tokens=5, stop=[" the"])
        for index, choice in enumerate(whole["choices"]):
            assert "".join(row["text"] for row in rows(chunks, index)) == choice["text"]
            finishes = [row["finish_reason"] for row in rows(chunks, index) if row["finish_reason"]]
            assert finishes == [choice["finish_reason"]]

    def test_equal_prompts_without_a_seed_differ(self, client: httpx.Client) -> None:
        fields = {"temperature": 2, "max_tokens": 16, "ignore_eos": True}
        answer = post(client, COMPLETIONS, prompt=["a"] * 4, **fields)
        assert len({choice["text"] for choice in answer["choices"]}) > 1

    def test_one_that_is_too_long_refuses_all(self, client: httpx.Client) -> None:
        body = {"model": "demo", "prompt": [[65], [65] * 5000], "max_tokens": 2}
        error = client.post(COMPLETIONS, json=body).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert "5000" in error["message"]


class TestEcho:
    @pytest.mark.parametrize("as_ids", [False, True], ids=["text", "ids"])
    def test_prompts_are_told_as_they_were_drawn(self, client: httpx.Client, as_ids: bool) -> None:
        """What was drawn, sent back as a prompt, is as likely as it was; offsets cut the text into its tokens."""
        drawn = post(client, COMPLETIONS, prompt="TTFT is", max_tokens=12, logprobs=2)["choices"][0]
        text = "TTFT is" + drawn["text"]
        prompt: Any = ids(client, text) if as_ids else text
        answer = post(client, COMPLETIONS, prompt=prompt, max_tokens=0, echo=True, logprobs=2)
        told, count = answer["choices"][0], len(drawn["logprobs"]["tokens"])
        assert told["text"] == text
        assert told["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 0
        logprobs = told["logprobs"]
        assert logprobs["tokens"][-count:] == drawn["logprobs"]["tokens"]
        assert logprobs["token_logprobs"][-count:] == pytest.approx(drawn["logprobs"]["token_logprobs"], abs=NEAR)
        assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
        assert all(2 <= len(top) <= 3 for top in logprobs["top_logprobs"][1:])
        ends = [*logprobs["text_offset"][1:], len(text)]
        pieces = [text[a:b] for a, b in zip(logprobs["text_offset"], ends, strict=True)]
        assert pieces == logprobs["tokens"]

    @pytest.mark.parametrize("n", [1, 2])
    def test_streamed_equals_whole(self, client: httpx.Client, n: int) -> None:
        fields = {"prompt": PROMPTS[:2], "max_tokens": 4, "echo": True, "logprobs": 1, "n": n, "ignore_eos": True}
        whole, chunks = post(client, COMPLETIONS, **fields), events(client, COMPLETIONS, **fields)
        for index, choice in enumerate(whole["choices"]):
            found = rows(chunks, index)
            assert "".join(row["text"] for row in found) == choice["text"]
            assert choice["text"].startswith(PROMPTS[index // n])
            for field in ("tokens", "text_offset"):
                joined = [one for row in found if row["logprobs"] for one in row["logprobs"][field]]
                assert joined == choice["logprobs"][field]

    def test_without_logprobs(self, client: httpx.Client) -> None:
        answer = post(client, COMPLETIONS, prompt="TTFT is", max_tokens=2, echo=True)
        assert answer["choices"][0]["logprobs"] is None
        text = answer["choices"][0]["text"]
        assert text.startswith("TTFT is") and len(text) > len("TTFT is")

    def test_ids_that_end_inside_a_character(self, client: httpx.Client) -> None:
        """é is two bytes: the prompt's last one is left to the output, which does not complete it here."""
        alphabet = json.loads(client.get("/headrace/v1/tokenizer").json()["tokenizer_json"])["model"]["vocab"]
        prompt = [*ids(client, "caf"), alphabet["Ã"]]
        answer = post(client, COMPLETIONS, prompt=prompt, max_tokens=1, echo=True, logit_bias={str(alphabet["©"]): 100})
        assert answer["choices"][0]["text"] == "café"


class TestStops:
    def test_kept_strings(self, client: httpx.Client) -> None:
        plain = post(client, CHAT, messages=QUESTION)["choices"][0]["message"]["content"]
        fields = {"messages": QUESTION, "stop": ["never", "token"]}
        cut = post(client, CHAT, **fields)["choices"][0]
        kept = post(client, CHAT, include_stop_str_in_output=True, **fields)["choices"][0]
        end = plain.index("token")
        assert (cut["message"]["content"], cut["stop_reason"]) == (plain[:end], "token")
        assert (kept["message"]["content"], kept["stop_reason"]) == (plain[: end + 5], "token")
        streamed = rows(events(client, CHAT, include_stop_str_in_output=True, **fields))
        assert "".join(row["delta"].get("content", "") for row in streamed) == plain[: end + 5]
        assert streamed[-1]["stop_reason"] == "token"

    def test_ids_are_told_and_special_ones_shown_if_asked(self, client: httpx.Client) -> None:
        (stop,) = ids(client, " first")
        answer = post(client, CHAT, messages=QUESTION, stop_token_ids=[stop])["choices"][0]
        assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", stop)
        kept = post(client, CHAT, messages=QUESTION, stop_token_ids=[stop], include_stop_str_in_output=True)
        assert kept["choices"][0]["message"]["content"] == answer["message"]["content"] + " first"
        shown = {"skip_special_tokens": False, "include_stop_str_in_output": True}
        end = post(client, CHAT, messages=QUESTION, **shown)["choices"][0]
        assert end["message"]["content"].endswith("<|im_end|>")
        assert end["stop_reason"] is None

    def test_four_at_once_the_first_in_the_text_wins(self, client: httpx.Client) -> None:
        plain = post(client, CHAT, messages=QUESTION)["choices"][0]["message"]["content"]
        stops = [plain[at : at + 4] for at in (40, 30, 20, 35)]
        answer = post(client, CHAT, messages=QUESTION, stop=stops)["choices"][0]
        assert answer["message"]["content"] == plain[: min(plain.index(stop) for stop in stops)]


class TestMessages:
    def test_a_continued_message(self, client: httpx.Client) -> None:
        """The same as the completion of the prompt that the template makes of it."""
        begun = [*QUESTION, {"role": "assistant", "content": "TTFT is the time"}]
        fields = {"messages": begun, "continue_final_message": True}
        tokens = client.post("/tokenize", json=fields).json()["tokens"]
        assert client.post("/detokenize", json={"tokens": tokens}).json()["prompt"].endswith("TTFT is the time")
        chat = post(client, CHAT, max_tokens=8, **fields)
        completion = post(client, COMPLETIONS, prompt=tokens, max_tokens=8)
        assert chat["choices"][0]["message"]["content"] == completion["choices"][0]["text"]
        assert chat["usage"]["prompt_tokens"] == len(tokens)

    @pytest.mark.parametrize("content", ["", "  ", None], ids=["empty", "blank", "null"])
    def test_nothing_to_continue(self, client: httpx.Client, content: str | None) -> None:
        begun = [*QUESTION, {"role": "assistant", "content": content}]
        body = {"model": "demo", "messages": begun, "continue_final_message": True}
        response = client.post(CHAT, json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")

    def test_without_a_beginning_of_an_answer(self, client: httpx.Client) -> None:
        counts = [
            client.post("/tokenize", json={"messages": QUESTION, "add_generation_prompt": begins}).json()["count"]
            for begins in (None, True, False)
        ]
        assert counts[0] == counts[1] > counts[2]

    def test_developer_is_system(self, client: httpx.Client) -> None:
        answers = [
            post(client, CHAT, messages=[{"role": role, "content": "Be short."}, *QUESTION], max_tokens=8)
            for role in ("system", "developer")
        ]
        assert answers[0]["choices"] == answers[1]["choices"]
        assert answers[0]["usage"]["prompt_tokens"] == answers[1]["usage"]["prompt_tokens"]

    def test_all_roles(self, client: httpx.Client) -> None:
        messages = [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "u"}], "name": "ann"},
            {"role": "assistant", "content": None, "tool_calls": [], "refusal": None},
            {"role": "tool", "content": "t", "tool_call_id": "1"},
            *QUESTION,
        ]
        assert post(client, CHAT, messages=messages, max_tokens=2, chat_template_kwargs={"x": [1]})["choices"]


class TestStreams:
    def test_usage_in_every_chunk(self, client: httpx.Client) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = events(client, CHAT, messages=QUESTION, max_tokens=6, n=2, stream_options=options)
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert (counts[-1], chunks[-1]["choices"]) == (12, [])
        assert all(chunk["usage"]["prompt_tokens"] == chunks[-1]["usage"]["prompt_tokens"] for chunk in chunks)

    def test_ids_model_and_time_are_one(self, client: httpx.Client) -> None:
        chunks = events(client, COMPLETIONS, prompt=PROMPTS, max_tokens=3)
        assert len({(chunk["id"], chunk["model"], chunk["created"], chunk["object"]) for chunk in chunks}) == 1
        other = events(client, COMPLETIONS, prompt="x", max_tokens=1)
        assert other[0]["id"] != chunks[0]["id"]

    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    @pytest.mark.parametrize("limit", [1, 2])
    def test_the_shortest(self, client: httpx.Client, path: str, limit: int) -> None:
        prompt: dict[str, Any] = {"messages": QUESTION} if path == CHAT else {"prompt": "TTFT is"}
        prompt["ignore_eos"] = True
        chunks = events(client, path, max_tokens=limit, stream_options={"include_usage": True}, **prompt)
        assert chunks[-1]["usage"]["completion_tokens"] == limit
        assert [row["finish_reason"] for row in rows(chunks) if row["finish_reason"]] == ["length"]


class TestTokens:
    TEXTS = ["", "TTFT is", "é 🎉 漢字", "  two  spaces\n\ttab", "<|im_end|> as text", "\0", "a" * 5000]

    @pytest.mark.parametrize("text", TEXTS[1:], ids=lambda text: repr(text)[:12])
    def test_there_and_back(self, client: httpx.Client, text: str) -> None:
        answer = client.post("/tokenize", json={"model": "demo", "prompt": text, "return_token_strs": True}).json()
        assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
        assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": text}

    def test_counts_are_those_of_usage(self, client: httpx.Client) -> None:
        chat = client.post("/tokenize", json={"messages": QUESTION}).json()
        assert chat["count"] == post(client, CHAT, messages=QUESTION, max_tokens=1)["usage"]["prompt_tokens"]
        assert chat["max_model_len"] == 2048
        text = client.post("/tokenize", json={"prompt": "TTFT is"}).json()
        assert text["count"] == post(client, COMPLETIONS, prompt="TTFT is", max_tokens=1)["usage"]["prompt_tokens"]
        assert client.post("/tokenize", json={"prompt": ""}).json()["tokens"] == []
        assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}

    @pytest.mark.parametrize(
        ("path", "body", "param", "status"),
        [
            ("/tokenize", {}, "prompt", 400),
            ("/tokenize", {"prompt": "a", "messages": QUESTION}, "prompt", 400),
            ("/tokenize", {"prompt": 5}, "prompt", 400),
            ("/tokenize", {"messages": []}, "messages", 400),
            ("/tokenize", {"prompt": "a", "mood": 1}, "mood", 400),
            ("/tokenize", {"prompt": "a", "model": "other"}, "model", 404),
            ("/detokenize", {}, "tokens", 400),
            ("/detokenize", {"tokens": "a"}, "tokens", 400),
            ("/detokenize", {"tokens": [-1]}, "tokens", 400),
            ("/detokenize", {"tokens": [10**9]}, "tokens", 400),
            ("/detokenize", {"tokens": [10**30]}, "tokens", 400),
        ],
    )
    def test_refusals(self, client: httpx.Client, path: str, body: Any, param: str, status: int) -> None:
        response = client.post(path, json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (status, param)


class TestSalt:
    def test_a_clients_salt_keeps_prefixes_apart(self, client: httpx.Client) -> None:
        prompt = [300 + index % 50 for index in range(150)]

        def cached(**fields: Any) -> int:
            usage = post(client, COMPLETIONS, prompt=prompt, max_tokens=1, **fields)["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        found = [cached(cache_salt="a"), cached(cache_salt="a"), cached(cache_salt="b"), cached(), cached()]
        assert found == [0, 128, 0, 0, 128]
