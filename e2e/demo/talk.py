"""The chat scenes: a streamed answer, and the four ways in which a caller is told no."""

from __future__ import annotations

from pathlib import Path

from demo.story import Story
from rig.chat import Answer, Endpoint, chat, question

MODEL = "demo"


class DemoFailed(Exception):
    """A scene did not go as it must: says what was seen."""


def expect(met: bool, what: str, answer: Answer) -> None:
    """Raise DemoFailed unless the scene went as it must."""
    if not met:
        raise DemoFailed(
            f"{what}; got HTTP {answer.status}, error {answer.error}, connection {answer.broken or 'fine'}"
        )


def streamed_answer(story: Story, endpoint: Endpoint, key_file: Path) -> Answer:
    """Ask once and print the answer as it comes. `key_file` is named instead of the key, which is never printed."""
    body = question(MODEL, "What is TTFT?")
    story.command(f"URL={endpoint.url}   # while the demo runs; later by the port-forward that its last lines tell")
    story.command(f"KEY=$(cat {key_file})")
    story.command(
        'curl -N $URL/v1/chat/completions -H "Authorization: Bearer $KEY" -H "content-type: application/json" -d '
        f'\'{{"model": "{MODEL}", "stream": true, "messages": [{{"role": "user", "content": "What is TTFT?"}}]}}\''
    )
    story.piece("     ")
    answer = chat(endpoint, body, on_text=story.piece)
    story.line()
    expect(answer.ok and bool(answer.text), "a streamed answer was expected", answer)
    spent = answer.total_s - (answer.ttft_s or 0.0)
    rate = (answer.tokens - 1) / spent if spent > 0 and answer.tokens > 1 else 0.0
    story.line(f"   TTFT {1000 * (answer.ttft_s or 0):.0f} ms, {answer.tokens} tokens, {rate:.0f} tokens/s")
    return answer


def _show_refusal(story: Story, label: str, answer: Answer) -> None:
    error = answer.error or {}
    retry = answer.headers.get("retry-after")
    story.line(f"   {label}: HTTP {answer.status} {error.get('code')}" + (f", Retry-After: {retry} s" if retry else ""))
    story.result(str(error.get("message")))


def refusals(story: Story, search: Endpoint, guest: Endpoint) -> None:
    """A wrong key, a spent quota, a prompt that cannot fit."""
    wrong = chat(Endpoint(search.url, "hr-not-a-key"), question(MODEL, "hello"))
    expect(wrong.status == 401, "401 was expected for a wrong key", wrong)
    _show_refusal(story, "a wrong key", wrong)

    for _ in range(8):
        over = chat(guest, question(MODEL, "hello", max_tokens=8))
        if over.status != 200:
            break
    expect(over.status == 429 and "retry-after" in over.headers, "429 with Retry-After was expected", over)
    _show_refusal(story, "the guest over its quota", over)

    long = chat(search, question(MODEL, "word " * 6000))
    expect(long.status == 400, "400 was expected for a prompt longer than the context", long)
    _show_refusal(story, "a prompt longer than the context", long)
