"""One request inside the core: its tokens, its pages and how far it is."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from headrace_wire.keys import block_key, chain_root
from headrace_wire.protocol import PAGE_TOKENS, Sampling, Submit, TokenLogprob

NO_TARGET_S = float("inf")


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // PAGE_TOKENS)


class Sequence:
    """A request's state. The scheduler alone writes it.

    `known` tokens = prompt + accepted output; `pending` = tokens being sampled by steps in flight; `computed` = tokens
    whose KV is written, counting steps in flight; `done` = the same without steps in flight. A step looks at each
    running sequence, so what it needs are plain numbers here, not sizes of other objects.
    """

    __slots__ = (
        "__weakref__",
        "cached",
        "computed",
        "deadline",
        "done",
        "floor",
        "holder",
        "id",
        "keys",
        "known",
        "leader",
        "limit",
        "order",
        "pages",
        "pending",
        "prompt",
        "prompt_logprobs",
        "published",
        "room",
        "root",
        "row",
        "sampling",
        "scores",
        "since",
        "started",
        "stop_ids",
        "submit",
        "target_s",
        "tokens",
        "told",
    )

    def __init__(self, submit: Submit, number: int, now: float, max_tokens: int):
        """`number`: count of arrivals; `now`: s; `max_tokens`: context length."""
        self.submit = submit
        self.id = submit.id
        self.holder = submit.holder
        self.sampling: Sampling = submit.sampling
        self.scores = submit.sampling.prompt_logprobs is not None  # its prompt is computed whole, whatever is cached
        self.prompt_logprobs: list[TokenLogprob] = []  # so far, of its second prompt token on
        self.stop_ids = frozenset(submit.stop_ids)
        self.tokens = array("i", submit.tokens)
        self.prompt = self.known = len(self.tokens)
        self.limit = min(self.prompt + submit.max_tokens, max_tokens)  # tokens at which it ends
        self.order = (-submit.priority, number)  # smaller goes first
        self.since = now  # arrival, s
        self.deadline = None if submit.left_ms is None else now + submit.left_ms / 1000.0
        self.target_s = NO_TARGET_S if submit.tpot_ms is None else submit.tpot_ms / 1000.0  # between tokens
        self.leader = ""  # id of the request whose prefill it waits for
        self.row = 0  # 0: holds no row
        self.computed = 0
        self.done = 0
        self.pending = 0
        self.pages: list[int] = []
        self.room = 0  # tokens that fit its pages
        self.told = 0  # of them, on pages that the runner knows; 0: it does not know the row
        self.root: bytes | None = None  # parent of the first block's key; None: its pages are not published
        self.keys: list[bytes] = []
        self.published = 0  # full pages offered to the prefix index
        self.cached = 0  # prompt tokens found in the prefix cache at the first admission
        self.started = False  # was admitted at least once
        self.floor = 0  # computed tokens before it may be preempted again

    @property
    def priority(self) -> int:
        """Higher goes first."""
        return -self.order[0]

    def scored(self, end: int, logprobs: list[TokenLogprob]) -> None:
        """Logprobs of prompt tokens, the last of them after `end` computed tokens; what is known already is skipped."""
        first = min(end, self.prompt - 1) - len(logprobs)  # prompt tokens with logprobs before these
        self.prompt_logprobs += logprobs[max(0, len(self.prompt_logprobs) - first) :]

    @property
    def unfilled(self) -> int:
        """Prompt tokens still to be computed; a follower will find its full blocks in the cache."""
        if self.leader:
            return self.prompt - (self.prompt - 1) // PAGE_TOKENS * PAGE_TOKENS
        return max(0, self.prompt - self.computed)

    @property
    def want(self) -> int:
        """Tokens to compute now; 0 when all that may be generated is in flight."""
        coming = self.known + self.pending
        return 0 if coming >= self.limit else coming - self.computed

    @property
    def reserve(self) -> int:
        """Tokens whose pages are taken at admission: all that is known, its own growth until `floor`, and the first
        token that it feeds back: its page then lies beside the prompt's, and pages in a row are read faster."""
        first = self.known + 1 if self.known + 1 < self.limit else self.known
        return max(first, self.floor)

    def start_chain(self, cache_root: str) -> None:
        """Key its blocks under this cache root from now on."""
        self.root = chain_root(cache_root, self.submit.salt, self.submit.adapter)
        self.keys = []
        self.published = 0

    def keys_of(self, pages: int) -> list[bytes]:
        """Keys of the first `pages` full pages."""
        if self.root is None:
            return []
        while len(self.keys) < pages:
            at = len(self.keys) * PAGE_TOKENS
            parent = self.keys[-1] if self.keys else self.root
            self.keys.append(block_key(parent, self.tokens[at : at + PAGE_TOKENS].tobytes()))
        return self.keys[:pages] if len(self.keys) > pages else self.keys

    def accept(self, tokens: list[int]) -> None:
        """What a step in flight was drawing for it."""
        self.pending -= 1
        self.tokens.extend(tokens)
        self.known += len(tokens)

    def enter(self, row: int, pages: list[int], cached: int) -> None:
        """It holds a row and pages, of which the first `cached` are computed."""
        self.row = row
        self.pages = pages
        self.room = len(pages) * PAGE_TOKENS
        self.computed = self.done = cached * PAGE_TOKENS
        self.published = cached

    def grow(self, pages: Iterable[int]) -> None:
        """It holds these pages too."""
        self.pages += pages
        self.room = len(self.pages) * PAGE_TOKENS

    def untold(self) -> list[int]:
        """Pages that the runner does not know."""
        return self.pages[self.told // PAGE_TOKENS :]

    def rewind(self) -> None:
        """Forget everything that was computed: its row and pages were taken back."""
        self.floor = min(self.computed + PAGE_TOKENS, self.limit - 1)
        self.leave()
        self.computed = self.done = self.pending = self.published = 0

    def leave(self) -> None:
        """It holds neither row nor pages any more."""
        self.row = self.room = self.told = 0
        self.pages = []
