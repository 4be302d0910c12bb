"""Server-sent events as engines write them, in every spelling and cut anywhere; whole answers from chunks."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.answer import Assembler
from headrace.gateway.events import END, MAX_EVENT, EventTooLarge, Kind, Splitter, data_of, leading_pieces, read_event

SPELLINGS = {
    "with a space": b'data: {"a":1}\n\n',
    "without a space": b'data:{"a":1}\n\n',
    "CRLF": b'data: {"a":1}\r\n\r\n',
    "CR": b'data: {"a":1}\r\r',
    "mixed ends": b'data: {"a":1}\n\r\n',
    "an event name": b'event: message\nid: 7\ndata: {"a":1}\n\n',
    "a comment before": b': hello\ndata: {"a":1}\n\n',
    "two lines": b'data: {"a":\ndata: 1}\n\n',
}


def datas(splitter: Splitter, pieces: list[bytes]) -> list[bytes]:
    events = [event for piece in pieces for event in splitter.feed(piece)] + splitter.finish()
    return [data for event in events if (data := data_of(event)) is not None]


@pytest.mark.parametrize("raw", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_every_spelling_is_understood_cut_anywhere(raw: bytes) -> None:
    stream = raw + b"data: [DONE]\n\n"
    for cut in range(len(stream)):
        found = datas(Splitter(), [stream[:cut], stream[cut:]])
        assert [json.loads(found[0]), found[1]] == [{"a": 1}, b"[DONE]"], cut


@given(st.lists(st.sampled_from(list(SPELLINGS.values())), max_size=6), st.data())
def test_no_event_is_lost_or_changed(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    splitter = Splitter()
    pieces = [stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)])]
    events = [event for piece in pieces for event in splitter.feed(piece)]
    again = datas(Splitter(), [END.join([*events, b""])])
    assert [json.loads(found) for found in again] == [{"a": 1}] * len(parts)


def test_comments_have_no_data() -> None:
    (event,) = Splitter().feed(b": keep-alive\n\n")
    assert read_event(data_of(event)).kind is Kind.COMMENT


def test_an_endless_event_is_refused() -> None:
    splitter = Splitter()
    with pytest.raises(EventTooLarge):
        for _ in range(MAX_EVENT // 65536 + 2):
            splitter.feed(b"x" * 65536)


def chunk(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def delta(**fields: Any) -> dict[str, Any]:
    return {"index": 0, "delta": fields, "finish_reason": None}


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
MEANINGS = {
    "role": (chunk(choices=[delta(role="assistant", content="")]), Kind.OTHER),
    "content": (chunk(choices=[delta(content="a")]), Kind.CONTENT),
    "content with usage null": (chunk(choices=[delta(content="a")], usage=None), Kind.CONTENT),
    "reasoning": (chunk(choices=[delta(reasoning_content="a")]), Kind.CONTENT),
    "plain text": (chunk(choices=[{"index": 0, "text": "a"}]), Kind.CONTENT),
    "finish": (chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]), Kind.OTHER),
    "usage": (chunk(choices=[], usage=USAGE), Kind.USAGE),
    "usage without choices": (chunk(usage=USAGE), Kind.USAGE),
    "error": (chunk(error={"message": "m", "code": "engine_failed"}), Kind.ERROR),
    "done": (b"data: [DONE]\n\n", Kind.DONE),
    "done without a space": (b"data:[DONE]\n\n", Kind.DONE),
    "not JSON": (b"data: {\n\n", Kind.MALFORMED),
    "wrong types": (chunk(choices=7), Kind.MALFORMED),
}


@pytest.mark.parametrize(("raw", "kind"), MEANINGS.values(), ids=MEANINGS.keys())
def test_what_an_event_means(raw: bytes, kind: Kind) -> None:
    (event,) = Splitter().feed(raw)
    assert read_event(data_of(event)).kind is kind


TRICKY = '"finish_reason":"stop"}]} "usage":{"error":"content":""[DONE]\\'


@pytest.mark.parametrize("spaced", [False, True], ids=["compact", "spaced"])
@pytest.mark.parametrize("finish", [None, "stop"])
def test_content_cannot_pass_for_anything_else(spaced: bool, finish: str | None) -> None:
    row = {"index": 0, "delta": {"content": TRICKY}, "finish_reason": finish}
    data = json.dumps({"choices": [row]}, separators=None if spaced else (",", ":")).encode()
    reading = read_event(data)
    assert reading.kind is Kind.CONTENT
    ended = reading.chunk is not None and reading.chunk.choices[0].finish_reason is not None
    assert ended is (finish is not None)


def test_usage_is_read() -> None:
    (event,) = Splitter().feed(chunk(choices=[], usage=USAGE))
    reading = read_event(data_of(event))
    assert reading.chunk is not None and reading.chunk.usage is not None
    assert (reading.chunk.usage.prompt_tokens, reading.chunk.usage.completion_tokens) == (3, 2)
    assert reading.chunk.usage.cached == 1


def test_a_chat_answer_is_joined() -> None:
    assembler = Assembler(chat=True)
    top = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    for choices, usage in [
        ([delta(role="assistant", content="")], None),
        ([{"index": 1, "delta": {"role": "assistant", "content": "B"}, "finish_reason": None}], None),
        ([delta(content="Hel")], None),
        ([delta(content="lo")], None),
        ([{"index": 0, "delta": {}, "finish_reason": "stop"}], None),
        ([{"index": 1, "delta": {}, "finish_reason": "length"}], None),
        ([], USAGE),
    ]:
        assembler.take(json.dumps({**top, "choices": choices, "usage": usage}).encode())
    body = json.loads(assembler.body(USAGE))
    assert (body["id"], body["object"], body["created"], body["model"]) == ("c1", "chat.completion", 5, "m")
    assert [c["message"] for c in body["choices"]] == [
        {"role": "assistant", "content": "Hello"},
        {"role": "assistant", "content": "B"},
    ]
    assert [c["finish_reason"] for c in body["choices"]] == ["stop", "length"]
    assert body["usage"] == USAGE


def test_a_plain_answer_is_joined() -> None:
    assembler = Assembler(chat=False)
    assembler.take(json.dumps({"id": "x", "choices": [{"index": 0, "text": "a"}]}).encode())
    assembler.take(json.dumps({"id": "x", "choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]}).encode())
    body = json.loads(assembler.body(USAGE))
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop"}]


TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
ENDED = TEXT.replace(b"null", b'"stop"')
LEADING: dict[str, tuple[bytes, tuple[int, int]]] = {
    "all": (TEXT * 3, (3, 3)),
    "then the end": (TEXT * 2 + ENDED + TEXT, (2, 2)),
    "then half of one": (TEXT * 2 + TEXT[:30], (2, 2)),
    "none": (ENDED + TEXT, (0, 0)),
    "half of one": (TEXT[:30], (0, 0)),
    "a comment first": (b": x\n\n" + TEXT, (0, 0)),
    "an error between": (TEXT + b'data: {"error":{}}\n\n' + TEXT, (0, 0)),
    "the words of an end as content": (TEXT + TEXT.replace(b'"a"', rb'"\"finish_reason\":\"stop\""') + TEXT, (3, 0)),
}


@pytest.mark.parametrize(("stream", "expected"), LEADING.values(), ids=LEADING.keys())
def test_pieces_at_the_start_are_counted_in_one_look(stream: bytes, expected: tuple[int, int]) -> None:
    events, size = leading_pieces(stream)
    assert events == expected[0]
    assert size == (expected[1] * len(TEXT) or (len(stream) if events else 0))
