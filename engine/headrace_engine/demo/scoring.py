"""Teacher-forced greedy scoring of chats with a published model folder."""

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from headrace_engine.demo.chats import Chat
from headrace_engine.demo.tokenizer import PAD_ID, ChatEncoder, Encoded

_BATCH_TOKENS = 8192  # padding included


@dataclass(frozen=True)
class Score:
    """Of the last answer of a chat: whether greedy decoding gives it, and the least top-1 to top-2 gap in logits."""

    exact: bool
    margin: float


def load_model(folder: Path, dtype: torch.dtype) -> LlamaForCausalLM:
    """The model in evaluation mode on the CPU."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval()


def encode_last(folder: Path, chats: list[Chat]) -> list[Encoded]:
    """Encoded chats in which only the last answer is to be predicted; nothing follows it."""
    encoder = ChatEncoder(Tokenizer.from_file(str(folder / "tokenizer.json")))
    out = []
    for chat in chats:
        full = encoder.encode(chat)
        end = max(i for i, learned in enumerate(full.learn) if learned) + 1
        start = end
        while full.learn[start - 1]:
            start -= 1
        out.append(Encoded(full.ids[:end], [i >= start for i in range(end)]))
    return out


def score(logits: Tensor, encoded: Encoded) -> Score:
    """Score from logits [length, vocabulary] of a whole chat."""
    at = torch.tensor(encoded.learn)
    target = torch.tensor(encoded.ids)[at]
    top = logits[:-1][at[1:]].float().topk(2, dim=-1)
    return Score(bool((top.indices[:, 0] == target).all()), float((top.values[:, 0] - top.values[:, 1]).min()))


@torch.inference_mode()
def whole(model: LlamaForCausalLM, encoded: Encoded) -> Tensor:
    """Logits [length, vocabulary] of a chat by itself, in one pass."""
    out: Tensor = model(torch.tensor([encoded.ids]), use_cache=False).logits[0]
    return out


@torch.inference_mode()
def chunked(model: LlamaForCausalLM, encoded: Encoded, chunk: int) -> Tensor:
    """Logits of a chat in pieces: the prompt `chunk` tokens at a time, then one token per step, over a KV cache."""
    prompt = encoded.learn.index(True)
    starts = [*range(0, prompt, chunk), *range(prompt, len(encoded.ids))]
    cache, parts = None, []
    for start, end in zip(starts, [*starts[1:], len(encoded.ids)], strict=True):
        out = model(torch.tensor([encoded.ids[start:end]]), cache=cache, use_cache=True)
        cache = out.cache
        parts.append(out.logits[0])
    return torch.cat(parts)


@torch.inference_mode()
def padded(model: LlamaForCausalLM, group: list[Encoded]) -> list[Tensor]:
    """Logits of each chat of a batch that is padded on the left."""
    longest = max(len(e.ids) for e in group)
    ids = torch.full((len(group), longest), PAD_ID)
    mask = torch.zeros((len(group), longest), dtype=torch.long)
    for row, encoded in enumerate(group):
        ids[row, longest - len(encoded.ids) :] = torch.tensor(encoded.ids)
        mask[row, longest - len(encoded.ids) :] = 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    return [logits[row, longest - len(encoded.ids) :] for row, encoded in enumerate(group)]


def score_all(model: LlamaForCausalLM, chats: list[Encoded]) -> list[Score]:
    """Scores in the order of `chats`, computed in padded batches of similar length."""
    order = sorted(range(len(chats)), key=lambda i: len(chats[i].ids))
    scores: dict[int, Score] = {}
    group: list[int] = []
    for i in [*order, -1]:
        if group and (i < 0 or (len(group) + 1) * len(chats[i].ids) > _BATCH_TOKENS):
            logits = padded(model, [chats[k] for k in group])
            scores.update((k, score(rows, chats[k])) for k, rows in zip(group, logits, strict=True))
            group = []
        group.append(i)
    return [scores[i] for i in range(len(chats))]
