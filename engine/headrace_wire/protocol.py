"""The structs that cross process borders: API process <-> core (ZeroMQ, msgpack) and engine <-> gateway (HTTP, JSON).

Unknown fields are ignored when decoding, so that protocol N and N-1 understand each other.
Durations are milliseconds (`_ms`) or seconds (`_s`), never clock times.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from headrace_wire.reasons import Reason

PROTOCOL = 1  # version of the gateway-engine protocol, see engine/PROTOCOL.md
PAGE_TOKENS = 64  # tokens of KV in one page (= block) on every backend


class Finish(str, Enum):
    """Why a generation ended normally."""

    STOP = "stop"
    LENGTH = "length"


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn. `temperature` 0 is greedy; the defaults of the others neither restrict nor shift."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0  # 64 bits
    min_p: float = 0.0  # least probability, as a share of the likeliest token's
    presence: float = 0.0  # taken from the logits of tokens of the output
    frequency: float = 0.0  # the same, for each time that the output holds the token
    repetition: float = 1.0  # divides positive and multiplies negative logits of tokens of prompt and output
    bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    min_tokens: int = 0  # output tokens before which no stop id is drawn
    logprobs: int | None = None  # likeliest tokens reported with each drawn one; None: nothing is reported
    prompt_logprobs: int | None = None  # the same for each token of the prompt but the first


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """A request, from the API process to the core."""

    id: str
    tokens: bytes  # prompt token ids, little-endian int32
    sampling: Sampling
    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    priority: int = 0  # higher first
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    left_ms: float | None = None  # ended with DEADLINE_EXCEEDED when it runs out
    salt: bytes = b""
    adapter: bytes | None = None
    holder: str = ""  # gateway id
    after: str = ""  # a request of the same prompt whose prefill this one waits for, to share its full blocks


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """End these requests; each gets one terminal Delta with the reason."""

    ids: list[str]
    reason: Reason = Reason.CANCELLED


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms of probabilities, from the logits as the model gave them, before temperature and penalties."""

    logprob: float  # of the drawn token
    top: list[tuple[int, float]] = []  # (token id, logprob), likeliest first


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of one request, from the core. Exactly one Delta of a request has `finish` or `error`."""

    id: str
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []  # one a token, if asked for
    prompt_logprobs: list[TokenLogprob] = []  # if asked for: with the first tokens, one a prompt token after the first
    cached: int = 0  # prompt tokens served from the prefix cache (on the first Delta and on the last)
    finish: Finish | None = None
    error: Reason | None = None


class KvGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one way of charging KV."""

    layers: int
    bytes_per_token: int  # over all layers of the group
    window: int | None = None  # tokens


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The model that an engine serves."""

    name: str
    revision: str = ""
    digest: str = ""  # sha256 of the weights' index
    architecture: str = ""
    tokenizer: str = ""  # digest: see GET /headrace/v1/tokenizer
    max_tokens: int = 0  # context length, prompt + output
    max_sequences: int = 0
    max_batch_tokens: int = 0
    dtype: str = ""
    kv_dtype: str = ""
    page_tokens: int = PAGE_TOKENS


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What one gateway holds on an engine."""

    requests: int = 0
    pages: int = 0
    queued_tokens: int = 0  # prompt tokens not yet prefilled


class CacheState(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix cache of an engine: what it holds now, and what it was worth since the start.

    Hits are counted in tokens, once a request, when it is first admitted: recomputing after a preemption is none.
    """

    blocks: int = 0  # pages that can be found by key, held by somebody or not
    bytes: int = 0  # of their KV
    asked_tokens: int = 0  # prompt tokens of requests that began
    hit_tokens: int = 0  # of them, found
    saved_prefill_s: float = 0.0  # that computing these would have taken, by the engine's step-time model
    evictions: dict[str, int] = {}  # blocks by reason: room, parent (unreachable without it), reset


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes on this engine, as fitted to its own steps, in seconds:

    `fixed_s` + `sequence_s` x sequences that decode + `context_token_s` x tokens of context over all of them
    + `prefill_token_s` x prompt tokens + `attended_token_s` x tokens that these attend to (P^2 / 2 for a prompt of P).
    """

    fixed_s: float = 0.0
    sequence_s: float = 0.0
    context_token_s: float = 0.0
    prefill_token_s: float = 0.0
    attended_token_s: float = 0.0
    steps: int = 0  # since the start, that the fit has seen; those of the measurement at the start among them


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /headrace/v1/state`: what routing, conformance and scaling need to know of one engine."""

    protocol: int = PROTOCOL
    engine: str = ""  # version of the engine
    instance: str = ""  # pod name or another stable id of this process
    epoch: int = 0  # changes when the prefix cache is reset
    seq: int = 0  # grows with each report
    model: ModelInfo
    cache_root: str = ""  # opaque hex: model, layout, dtype, epoch
    kv_groups: list[KvGroup] = []
    total: int = 0  # pages
    free: int = 0  # pages that nobody references and that hold nothing of worth
    evictable: int = 0  # pages that nobody references but that hold a cached prefix
    holders: dict[str, Held] = {}  # by gateway id
    running: int = 0  # requests with at least one prefill token scheduled
    waiting: int = 0
    queued_tokens: int = 0  # prompt tokens not yet prefilled, running and waiting
    oldest_waiting_s: float | None = None
    prefill_rate: float = 0.0  # tokens/s that a new prompt would get now; 0 = not yet measured
    draining: bool = False
    pending_step_age_ms: float = 0.0  # how long the step in flight has been running
    preemptions: int = 0  # since start
    startup_s: float = 0.0  # process start to ready
    cache: CacheState = CacheState()
    step_times: StepTimes | None = None  # None: not yet known


class RequestHints(msgspec.Struct, frozen=True, kw_only=True):
    """The `headrace` object that a gateway adds to an OpenAI body. Never taken from clients."""

    id: str = ""
    holder: str = ""
    priority: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    left_ms: float | None = None
    salt: str = ""  # hex


class TokenizerBundle(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /headrace/v1/tokenizer`: all that counting and templating need, addressed by `digest`."""

    digest: str  # sha256 over the other fields
    tokenizer_json: str
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    eos_ids: tuple[int, ...] = ()
