"""Byte-level BPE tokenizer with a ChatML template, and chats as token ids."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headrace_engine.demo.chats import Chat

VOCABULARY = 1536
CONTEXT = 2048  # tokens
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
PAD_ID, START_ID, END_ID = 0, 1, 2
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Encoded:
    """Token ids of a chat; `learn[i]` says whether token i belongs to an answer."""

    ids: list[int]
    learn: list[bool]


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A byte-level BPE tokenizer of `VOCABULARY` entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def with_dropout(tokenizer: Tokenizer, rate: float) -> Tokenizer:
    """A copy that skips merges at random, so that a model meets words in other pieces."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.model.dropout = rate
    return copy


def decisive(answers: list[str], tokenizer: Tokenizer) -> dict[str, int]:
    """How many first tokens tell each answer from all others."""
    pieces = {answer: tokenizer.encode(answer).ids for answer in answers}
    shared = Counter(tuple(ids[:n]) for ids in pieces.values() for n in range(1, len(ids) + 1))
    return {
        a: next((n for n in range(1, len(ids)) if shared[tuple(ids[:n])] == 1), len(ids)) for a, ids in pieces.items()
    }


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json; the chat template stands in the latter."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer.json").chmod(0o644)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "bos_token": None,
        "eos_token": END,
        "pad_token": PAD,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


class ChatEncoder:
    """Encodes chats as the template would; `questions` may be another tokenizer of the same vocabulary."""

    def __init__(self, tokenizer: Tokenizer, questions: Tokenizer | None = None) -> None:
        self._exact = tokenizer
        self._questions = questions or tokenizer
        self._newline = tokenizer.encode("\n").ids
        self._assistant = [START_ID, *tokenizer.encode("assistant\n").ids]

    def encode(self, chat: Chat) -> Encoded:
        """Token ids of the whole chat; answers and the token that ends them are to be learned."""
        ids: list[int] = []
        learn: list[bool] = []

        def add(part: list[int], learned: bool = False) -> None:
            ids.extend(part)
            learn.extend([learned] * len(part))

        if chat.system is not None:
            add([START_ID, *self._exact.encode(f"system\n{chat.system}").ids, END_ID, *self._newline])
        for turn in chat.turns:
            add([START_ID, *self._questions.encode(f"user\n{turn.question}").ids, END_ID, *self._newline])
            add(self._assistant)
            add([*self._exact.encode(turn.answer).ids, END_ID], learned=True)
            add(self._newline)
        return Encoded(ids, learn)
