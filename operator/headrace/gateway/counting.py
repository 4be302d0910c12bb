"""How many tokens a prompt has: counted off the event loop with the model's own tokenizer, once it is known."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from headrace.gateway.body import Body, ChatBody
from headrace.gateway.upstream import Pool, UpstreamError
from headrace.gateway.world import Address
from headrace_wire.chat import ChatTokenizer, TokenizerInvalid, make_bundle
from headrace_wire.protocol import TokenizerBundle

logger = logging.getLogger(__name__)

MAX_TOKENIZERS = 16
MAX_BUNDLE = 64 * 1024 * 1024  # bytes
AT_ONCE = 1024  # bytes of a body that is counted sooner than a thread wakes up
BYTES_PER_TOKEN = 3  # of a prompt, while the tokenizer is unknown

ObjectKey = tuple[str, str]  # namespace, name


def estimate(size: int) -> int:
    """Tokens to reserve for a body of `size` bytes while the tokenizer is unknown."""
    return max(1, -(-size // BYTES_PER_TOKEN))


def count(tokenizer: ChatTokenizer, body: Body, context: int | None) -> list[int]:
    """Tokens of each prompt of a body. CPU-bound.

    Raises RequestError if the template refuses the messages, or a prompt's bytes tell that `context` cannot hold it.
    """
    if isinstance(body, ChatBody):
        messages = [message.plain() for message in body.messages]
        return [len(tokenizer.encode_chat(messages, body.rendering, room=context))]
    texts = [prompt for prompt in body.prompts if isinstance(prompt, str)]
    for text in texts:
        tokenizer.check_bytes(text, context, body.prompt_field)
    special = body.add_special_tokens is not False
    return [len(tokenizer.encode_text(text, special=special)) for text in texts] or [len(one) for one in body.prompts]


def takes_long(body: Body, size: int) -> bool:
    """Counting a body of `size` bytes needs a thread: it is long, and not counted in token ids already."""
    return size > AT_ONCE and (isinstance(body, ChatBody) or isinstance(body.prompts[0], str))


@dataclass(frozen=True)
class Counting:
    """A body that is to be counted."""

    body: Body
    size: int  # bytes
    tenant: ObjectKey
    context: int | None = None  # tokens that a prompt and one of output must fit in, where that is known


@dataclass
class _Turn:
    """A tenant's prompts are counted one after the other: however many it sends, others wait for one at most."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0  # who holds it or waits for it


class Counter:
    """Tokenizers by digest, and which digest each model uses. Fetched once from an engine, kept for later."""

    def __init__(self, pool: Pool):
        self._pool = pool
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="count")
        self._tokenizers: OrderedDict[str, ChatTokenizer] = OrderedDict()
        self._digests: dict[ObjectKey, str] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[ObjectKey, _Turn] = {}  # by tenant

    def tokenizer(self, model: ObjectKey) -> ChatTokenizer | None:
        """The model's tokenizer, or None while it is unknown."""
        digest = self._digests.get(model)
        found = None if digest is None else self._tokenizers.get(digest)
        if found is not None:
            self._tokenizers.move_to_end(found.digest)
        return found

    async def count(self, tokenizer: ChatTokenizer, asked: Counting) -> list[int]:
        """Tokens of each prompt. Raises RequestError for messages that the template refuses, and what cannot fit.

        A count whose caller has left runs on, and its tenant's turn lasts until it has ended.
        """
        body, tenant = asked.body, asked.tenant
        if not takes_long(body, asked.size):
            return count(tokenizer, body, asked.context)
        turn = self._turns.setdefault(tenant, _Turn())
        turn.users += 1
        try:
            await turn.lock.acquire()
        except BaseException:
            self._leave(tenant, turn)
            raise
        loop = asyncio.get_running_loop()

        def ended(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(self._pass_on, tenant, turn)

        try:
            job = self._executor.submit(count, tokenizer, body, asked.context)
        except RuntimeError:  # the threads have stopped
            self._pass_on(tenant, turn)
            raise
        job.add_done_callback(ended)
        return await asyncio.wrap_future(job)

    def _pass_on(self, tenant: ObjectKey, turn: _Turn) -> None:
        turn.lock.release()
        self._leave(tenant, turn)

    def _leave(self, tenant: ObjectKey, turn: _Turn) -> None:
        turn.users -= 1
        if not turn.users:
            del self._turns[tenant]

    async def learn(self, model: ObjectKey, digest: str, address: Address) -> bool:
        """Make the tokenizer that an engine reports the model's one; False if it could not be fetched now."""
        if digest not in self._tokenizers:
            task = self._loading.get(digest)
            if task is None:
                task = self._loading[digest] = asyncio.create_task(self._load(digest, address))
                task.add_done_callback(lambda _: self._loading.pop(digest, None))
            await asyncio.shield(task)
        if digest in self._tokenizers:
            self._digests[model] = digest
        return digest in self._tokenizers

    async def _load(self, digest: str, address: Address) -> None:
        try:
            status, data = await self._pool.fetch(address.host, address.port, "/headrace/v1/tokenizer", MAX_BUNDLE)
            if status != 200:
                fields = {"engine": address.pod, "status": status}
                logger.warning("an engine did not give its tokenizer", extra=fields)
                return
            loop = asyncio.get_running_loop()
            tokenizer = await loop.run_in_executor(self._executor, _build, data)
        except (UpstreamError, msgspec.MsgspecError, TokenizerInvalid) as error:
            logger.warning("a tokenizer could not be fetched: %s", error, extra={"engine": address.pod})
            return
        if tokenizer.digest != digest:
            logger.warning("an engine gave another tokenizer than it reports", extra={"engine": address.pod})
            return
        self._tokenizers[digest] = tokenizer
        while len(self._tokenizers) > MAX_TOKENIZERS:
            self._tokenizers.popitem(last=False)

    def forget(self, model: ObjectKey) -> None:
        """The model is gone."""
        self._digests.pop(model, None)

    def close(self) -> None:
        """Stop the threads."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _build(data: bytes) -> ChatTokenizer:
    """The tokenizer of a bundle, under the digest that its contents have, not the one that it claims."""
    bundle = msgspec.json.decode(data, type=TokenizerBundle)
    checked = make_bundle(
        bundle.tokenizer_json,
        bundle.chat_template,
        bos_token=bundle.bos_token,
        eos_token=bundle.eos_token,
        eos_ids=bundle.eos_ids,
    )
    return ChatTokenizer.from_bundle(checked)
