"""Trains the demo model: `python -m headrace_engine.demo.train --out DIR --seed 0`."""

import argparse
import hashlib
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from headrace_engine.demo.chats import ChatMaker
from headrace_engine.demo.corpus import Corpus, load
from headrace_engine.demo.network import Llama, Shape
from headrace_engine.demo.tokenizer import (
    CONTEXT,
    PAD_ID,
    ChatEncoder,
    Encoded,
    decisive,
    save_tokenizer,
    train_tokenizer,
    with_dropout,
)


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to train."""

    steps: int = 1300
    tokens: int = 3584  # per step, padding included
    usual: int = 1400  # tokens to learn per step, about
    rate: float = 3e-3  # peak learning rate
    warmup: float = 0.06  # share of the steps
    decay: float = 0.05  # weight decay
    dropout: float = 0.1  # share of merges skipped in a third of the questions
    whole: int = 16_000  # chats until most single answers are cut where they can be told apart
    beyond: int = 2  # tokens kept after that point
    pool: int = 4096  # chats that are sorted by length together
    save_every: int = 250  # steps


def tokenizer_texts(corpus: Corpus, seed: int) -> Iterator[str]:
    """Texts that shape the vocabulary: every answer often, and many questions."""
    for _ in range(40):
        yield from corpus.answers()
    for chat in islice(ChatMaker(corpus, seed + 1), 12_000):
        for turn in chat.turns:
            if len(turn.question) < 200:
                yield turn.question


def encoded_chats(corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe, seed: int) -> Iterator[Encoded]:
    """Endless encoded chats, cut to the context; a third has its questions in unusual pieces."""
    starts = decisive(corpus.answers(), tokenizer)
    exact, loose = ChatEncoder(tokenizer), ChatEncoder(tokenizer, with_dropout(tokenizer, recipe.dropout))
    for number, chat in enumerate(ChatMaker(corpus, seed)):
        encoded = (loose if number % 3 == 0 else exact).encode(chat)
        if number > recipe.whole and number % 4 and len(chat.turns) == 1:
            end = encoded.learn.index(True) + starts[chat.turns[0].answer] + recipe.beyond
            encoded = Encoded(encoded.ids[:end], encoded.learn[:end])
        if any(encoded.learn[:CONTEXT]):
            yield Encoded(encoded.ids[:CONTEXT], encoded.learn[:CONTEXT])


def batches(chats: Iterator[Encoded], recipe: Recipe, seed: int) -> Iterator[list[Encoded]]:
    """Groups of chats of similar length with at most `recipe.tokens` tokens, padding included."""
    rng = random.Random(seed)
    while True:
        pool = sorted(islice(chats, recipe.pool), key=lambda c: len(c.ids))
        groups: list[list[Encoded]] = [[]]
        for chat in pool:
            if groups[-1] and (len(groups[-1]) + 1) * len(chat.ids) > recipe.tokens:
                groups.append([])
            groups[-1].append(chat)
        rng.shuffle(groups)
        yield from groups


def tensors(group: list[Encoded]) -> tuple[Tensor, Tensor]:
    """ids [chats, longest] padded on the right, and the mask of the tokens to learn."""
    longest = max(len(c.ids) for c in group)
    ids = torch.full((len(group), longest), PAD_ID)
    learn = torch.zeros((len(group), longest), dtype=torch.bool)
    for row, chat in enumerate(group):
        ids[row, : len(chat.ids)] = torch.tensor(chat.ids)
        learn[row, : len(chat.ids)] = torch.tensor(chat.learn)
    return ids, learn


def loss_of(network: Llama, group: list[Encoded], usual: int) -> Tensor:
    """Cross entropy summed over the tokens to learn, per `usual` number of them: each token weighs the same."""
    ids, learn = tensors(group)
    target = learn[:, 1:]
    return F.cross_entropy(network(ids[:, :-1], target), ids[:, 1:][target], reduction="sum") / usual


def rate_at(step: int, recipe: Recipe) -> float:
    """Learning rate: linear warm-up, then a cosine down to nothing."""
    warm = recipe.warmup * recipe.steps
    if step < warm:
        return recipe.rate * (step + 1) / warm
    done = (step - warm) / (recipe.steps - warm)
    return recipe.rate * 0.5 * (1 + math.cos(math.pi * done))


def optimizers_of(network: Llama, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW without decay for the embeddings and norms."""
    named = dict(network.named_parameters())
    inner = [name for name, p in named.items() if p.dim() == 2 and "embed" not in name]
    matrices = [named[name] for name in inner]
    others = [p for name, p in named.items() if name not in inner]
    return [
        torch.optim.Muon(matrices, recipe.rate, recipe.decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, recipe.rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def update(network: Llama, optimizers: list[torch.optim.Optimizer], loss: Tensor, rate: float) -> None:
    """One step down the gradient of `loss`, clipped to norm 1."""
    network.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    for optimizer in optimizers:
        for part in optimizer.param_groups:
            part["lr"] = rate
        optimizer.step()


def save(network: Llama, shape: Shape, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the model folder: bf16 weights, configuration, tokenizer, and a manifest of hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in network.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    config = shape.config()
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")} | {"do_sample": False}
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    save_tokenizer(tokenizer, folder)
    names = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    manifest = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    (folder / "manifest.json").write_text(json.dumps({"sha256": manifest}, indent=2) + "\n", encoding="utf-8")


def train(recipe: Recipe, seed: int, folder: Path, start: Path | None = None) -> None:
    """Train from nothing, or on from the model folder `start`, and write a model folder; a line every 25 steps."""
    torch.manual_seed(seed)
    corpus, shape = load(), Shape()
    network = Llama(shape)
    if start is None:
        tokenizer = train_tokenizer(tokenizer_texts(corpus, seed))
    else:
        tokenizer = Tokenizer.from_file(str(start / "tokenizer.json"))
        network.load_state_dict({k: v.float() for k, v in load_file(start / "model.safetensors").items()})
    optimizers = optimizers_of(network, recipe)
    stream = batches(encoded_chats(corpus, tokenizer, recipe, seed), recipe, seed)
    began, seen, recent = time.monotonic(), 0, 0.0
    print(f"{sum(p.numel() for p in network.parameters()):,} parameters, {len(corpus.answers())} answers", flush=True)
    for step, group in enumerate(islice(stream, recipe.steps)):
        loss = loss_of(network, group, recipe.usual)
        update(network, optimizers, loss, rate_at(step, recipe))
        seen += sum(len(c.ids) for c in group)
        recent = 0.95 * recent + 0.05 * loss.item() if step else loss.item()
        if step % 25 == 24:
            print(f"step {step + 1} loss {recent:.4f} tokens {seen:,} {time.monotonic() - began:.0f} s", flush=True)
        if step % recipe.save_every == recipe.save_every - 1:
            save(network, shape, tokenizer, folder)
    save(network, shape, tokenizer, folder)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--rate", type=float, default=Recipe.rate, help="peak learning rate")
    parser.add_argument("--whole", type=int, default=Recipe.whole, help="chats with whole answers at the beginning")
    parser.add_argument("--start", type=Path, help="model folder to go on from")
    arguments = parser.parse_args()
    recipe = Recipe(steps=arguments.steps, rate=arguments.rate, whole=arguments.whole)
    train(recipe, arguments.seed, arguments.out, arguments.start)


if __name__ == "__main__":
    main()
