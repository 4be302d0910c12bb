"""A tokenizer of one token a byte, with ChatML: small enough to be made in a test, real in every other way."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headrace_wire.chat import make_bundle
from headrace_wire.protocol import TokenizerBundle

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 258  # token ids: 256 bytes and two special tokens


def tiny_bundle() -> TokenizerBundle:
    """Bytes are ids 0 to 255 in the order of the byte-level alphabet; `<|im_end|>` (257) ends an answer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return make_bundle(tokenizer.to_str(), TEMPLATE, eos_token="<|im_end|>", eos_ids=(257,))
