"""What this gateway has on each endpoint: counted at dispatch, corrected by tokens seen, released once."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.routing.types import RouteRequest
from headrace_wire.protocol import PAGE_TOKENS, Held


@dataclass(slots=True)
class _Sum:
    requests: int = 0  # sequences: each choice of a request is one
    pages: int = 0
    queued_tokens: int = 0


def pages_of(tokens: int) -> int:
    """KV pages of so many tokens."""
    return -(-max(0, tokens) // PAGE_TOKENS)


def predicted_pages(request: RouteRequest) -> int:
    """KV pages that a request is expected to fill: its prompt once, each choice's output apart."""
    choices = max(1, request.choices)
    output = -(-max(0, request.predicted_output) // choices)
    shared = max(0, request.prompt_tokens) // PAGE_TOKENS  # full pages of the prompt serve all choices
    return shared + choices * pages_of(max(0, request.prompt_tokens) - shared * PAGE_TOKENS + output)


class Load:
    """One dispatched request. Its share of the ledger ends exactly once, whatever happens."""

    __slots__ = ("_ledger", "_open", "_pages", "_queued", "_request", "_sequences", "endpoint")

    def __init__(self, ledger: LoadLedger, endpoint: str, request: RouteRequest):
        self.endpoint = endpoint
        self._ledger = ledger
        self._request = request
        self._open = True
        self._sequences = max(1, request.choices)
        self._pages = predicted_pages(request)
        self._queued = max(0, request.prompt_tokens)
        ledger.add(endpoint, self._sequences, self._pages, self._queued)

    def tokens_seen(self, output_tokens: int) -> None:
        """So many output tokens have come, over all choices: prefill is done, and the output may exceed its guess."""
        if not self._open or output_tokens <= 0:
            return
        pages = self._pages
        if output_tokens > self._request.predicted_output:
            pages = max(pages, pages_of(self._request.prompt_tokens + output_tokens))
        if pages != self._pages or self._queued:
            self._ledger.add(self.endpoint, 0, pages - self._pages, -self._queued)
            self._pages, self._queued = pages, 0

    def release(self) -> None:
        """The request is no longer on the endpoint. Idempotent."""
        if self._open:
            self._open = False
            self._ledger.add(self.endpoint, -self._sequences, -self._pages, -self._queued)


class LoadLedger:
    """The loads of one gateway by endpoint; endpoints without load take no room."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}

    def dispatch(self, endpoint: str, request: RouteRequest) -> Load:
        """Count a request from this moment on."""
        return Load(self, endpoint, request)

    def held(self, endpoint: str) -> Held:
        """What this gateway has there."""
        held = self._sums.get(endpoint)
        return (
            Held() if held is None else Held(requests=held.requests, pages=held.pages, queued_tokens=held.queued_tokens)
        )

    def endpoints(self) -> list[str]:
        """Endpoints with load."""
        return list(self._sums)

    def add(self, endpoint: str, requests: int, pages: int, queued_tokens: int) -> None:
        """For Load alone."""
        held = self._sums.setdefault(endpoint, _Sum())
        held.requests += requests
        held.pages += pages
        held.queued_tokens += queued_tokens
        if held.requests == 0:
            del self._sums[endpoint]
