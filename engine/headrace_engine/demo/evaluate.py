"""Asks the demo model what it never saw: `python -m headrace_engine.demo.evaluate DIR [--oracle FILE]`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from headrace_engine.demo import oracle
from headrace_engine.demo.chats import Chat
from headrace_engine.demo.corpus import load
from headrace_engine.demo.exams import make
from headrace_engine.demo.scoring import Score, encode_last, load_model, score_all

PARAPHRASES, INTENTS = 0.96, 0.85  # least share of right answers
_BLIND = "hand-written intents, blind"
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def right(scores: Sequence[Score]) -> float:
    """Share of exact answers; scores must not be empty."""
    return sum(s.exact for s in scores) / len(scores)


def row(kind: str, scores: Sequence[Score]) -> str:
    """One line of the table: kind, right of asked, percent, least margin of the right ones."""
    good = [s.margin for s in scores if s.exact]
    least = f"{min(good):6.2f}" if good else "     -"
    return f"{kind:36} {len(good):5}/{len(scores):<5} {100 * right(scores):6.1f} % {least}"


@torch.inference_mode()
def wrong_answer(model: LlamaForCausalLM, folder: Path, chat: Chat) -> str:
    """What the model says instead, greedily, at most 40 tokens."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoded = encode_last(folder, [chat])[0]
    prompt = encoded.ids[: encoded.learn.index(True)]
    out = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)
    said: str = tokenizer.decode(out[0, len(prompt) :].tolist())
    return said


def evaluate(folder: Path, dtype: str, wrong: int) -> bool:
    """Print the table and up to `wrong` wrong answers of each kind that is not blind; true if the targets are met."""
    model = load_model(folder, _DTYPES[dtype])
    results: dict[str, list[Score]] = {}
    print(f"{'kind':36} {'right/asked':>11} {'':8} least margin")
    for kind, chats in make(load()).items():
        results[kind] = score_all(model, encode_last(folder, chats))
        print(row(kind, results[kind]), flush=True)
        missed = [chat for chat, s in zip(chats, results[kind], strict=True) if not s.exact]
        for chat in missed[: 0 if kind == _BLIND else wrong]:
            print(f"    {chat.turns[-1].question[-80:]!r} -> {wrong_answer(model, folder, chat)!r}")
    paraphrases = [s for kind, scores in results.items() if kind.startswith("paraphrases") for s in scores]
    print(row("all paraphrases", paraphrases))
    return right(paraphrases) >= PARAPHRASES and right(results[_BLIND]) >= INTENTS


def main() -> int:
    """Parse the command line; 0 if the thresholds are met."""
    parser = argparse.ArgumentParser(description="Evaluate the demo model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=sorted(_DTYPES), default="bfloat16")
    parser.add_argument("--wrong", type=int, default=0, help="wrong answers to print per kind")
    parser.add_argument("--oracle", type=Path, help="file to write prompts with exact answers to")
    arguments = parser.parse_args()
    met = evaluate(arguments.folder, arguments.dtype, arguments.wrong)
    if arguments.oracle is not None:
        print(f"{oracle.write(arguments.folder, arguments.oracle)} prompts written to {arguments.oracle.name}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
