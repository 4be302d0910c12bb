"""Prompts whose exact greedy answer does not depend on precision, chunking or batching."""

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headrace_engine.demo.chats import Chat, Turn
from headrace_engine.demo.corpus import Corpus, load
from headrace_engine.demo.scoring import Score, chunked, encode_last, load_model, padded, score, whole
from headrace_engine.demo.tokenizer import Encoded

MARGIN = 2.0  # logits between the chosen token and the next best, at every step
BATCH = 8  # chats per padded batch
CHUNKS = (16, 64)  # prompt tokens per pass; prompts under 17 tokens are one piece
_SYSTEM = "You are a helpful assistant."


@dataclass(frozen=True)
class Candidate:
    """A chat that may become an oracle prompt."""

    id: str
    chat: Chat


def _single(key: str, question: str, answer: str, system: str | None = None) -> Candidate:
    return Candidate(key, Chat(system, (Turn(question, answer),)))


def _filler(corpus: Corpus, words: int) -> str:
    rng, out = random.Random(words), [_SYSTEM]
    while sum(len(s.split()) for s in out) < words:
        out.append(rng.choice(corpus.filler.sentences.say))
    return " ".join(out)


def _short(corpus: Corpus) -> list[Candidate]:
    out = [_single(f"define-{t.id}", f"What is {t.names[0]}?", t.answer) for t in corpus.terms]
    out += [_single(f"explain-{t.id}", f"explain {t.names[0]}", t.answer) for t in corpus.terms[::4]]
    out += [_single(f"why-{t.id}", f"Why does {t.names[0]} matter?", t.why) for t in corpus.terms if t.why]
    out += [_single(f"improve-{t.id}", f"How do I improve {t.names[0]}?", t.improve) for t in corpus.terms if t.improve]
    out += [_single(f"intent-{i.id}", i.say[0], i.answer) for i in corpus.intents]
    for question in ("What is a banana?", "What is the capital of France?", "What is a flimzor?"):
        out.append(_single(f"unknown-{question.split()[-1].strip('?').lower()}", question, corpus.unknown.answer))
    return out


def _with_context(corpus: Corpus) -> list[Candidate]:
    out = []
    reasoned = [t for t in corpus.terms if t.why and t.improve]
    for term in reasoned:
        first = Turn(f"What is {term.names[0]}?", term.answer)
        second = Turn("Why does it matter?", term.why or "")
        third = Turn("How do I improve it?", term.improve or "")
        out.append(Candidate(f"chat-{term.id}-why", Chat(None, (first, second))))
        out.append(Candidate(f"chat-{term.id}-improve", Chat(None, (first, second, third))))
        out.append(Candidate(f"system-{term.id}", Chat(_SYSTEM, (first,))))
    for words in (60, 200, 400, 800):
        for term in reasoned[:4]:
            question = f"What is {term.names[0]}?"
            out.append(_single(f"long-{words}-{term.id}", question, term.answer, _filler(corpus, words)))
    return out


def messages(chat: Chat) -> list[dict[str, str]]:
    """The chat in the API's shape, without its last answer."""
    out = [] if chat.system is None else [{"role": "system", "content": chat.system}]
    for turn in chat.turns:
        out += [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer}]
    return out[:-1]


def _scores(folder: Path, chats: list[Encoded]) -> list[list[Score]]:
    """Scores of each chat over both precisions and whole, chunked, and padded passes."""
    found: list[list[Score]] = [[] for _ in chats]
    for dtype in (torch.float32, torch.bfloat16):
        model = load_model(folder, dtype)
        for i, encoded in enumerate(chats):
            found[i].append(score(whole(model, encoded), encoded))
            if found[i][-1].margin >= MARGIN:
                found[i] += [score(chunked(model, encoded, chunk), encoded) for chunk in CHUNKS]
        for start in range(0, len(chats), BATCH):
            group = chats[start : start + BATCH]
            for i, logits in enumerate(padded(model, group), start):
                found[i].append(score(logits, chats[i]))
    return found


def select(folder: Path) -> list[dict[str, Any]]:
    """The candidates that are exact with a margin of at least `MARGIN` in every way of computing them."""
    corpus = load()
    candidates = _short(corpus) + _with_context(corpus)
    encoded = encode_last(folder, [c.chat for c in candidates])
    rows = []
    for candidate, tokens, scores in zip(candidates, encoded, _scores(folder, encoded), strict=True):
        margin = min(s.margin for s in scores)
        if all(s.exact for s in scores) and margin >= MARGIN:
            prompt = tokens.learn.index(True)
            rows.append(
                {
                    "id": candidate.id,
                    "messages": messages(candidate.chat),
                    "answer": candidate.chat.turns[-1].answer,
                    "margin": round(margin, 2),
                    "prompt_tokens": prompt,
                    "answer_tokens": len(tokens.ids) - prompt,
                }
            )
    return rows


def write(folder: Path, file: Path) -> int:
    """Write the oracle of a model folder; returns the number of prompts."""
    rows = select(folder)
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    content = {"model_sha256": digest, "margin": MARGIN, "prompts": rows}
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return len(rows)
