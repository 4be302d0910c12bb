"""The committed demo model: files, tokenizer, template, and the oracle's exact answers."""

import hashlib
import json
import stat
from typing import Any

import pytest

from headrace_engine.demo import model_path, oracle_path

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MANIFEST: dict[str, str] = json.loads((model_path() / "manifest.json").read_text())["sha256"]
ORACLE: dict[str, Any] = json.loads(oracle_path().read_text())
PROMPTS: list[dict[str, Any]] = ORACLE["prompts"]
BATCH = 24


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(model_path())


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest) -> Any:
    dtype = getattr(torch, request.param)
    return transformers.AutoModelForCausalLM.from_pretrained(model_path(), dtype=dtype).eval()


@pytest.mark.parametrize("name", sorted(MANIFEST))
def test_file_is_the_one_in_the_manifest(name: str) -> None:
    assert hashlib.sha256((model_path() / name).read_bytes()).hexdigest() == MANIFEST[name]


def test_manifest_names_every_file() -> None:
    assert {p.name for p in model_path().iterdir()} == {*MANIFEST, "manifest.json"}


def test_weights_are_small_readable_and_the_oracle_is_theirs() -> None:
    weights = model_path() / "model.safetensors"
    assert weights.stat().st_size <= 5_000_000
    assert weights.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH) == stat.S_IRGRP | stat.S_IROTH
    assert ORACLE["model_sha256"] == MANIFEST["model.safetensors"]


def test_shape() -> None:
    config = transformers.AutoConfig.from_pretrained(model_path())
    assert config.architectures == ["LlamaForCausalLM"]
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (1536, 256, 3)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 64)
    assert (config.max_position_embeddings, config.tie_word_embeddings) == (2048, True)


@pytest.mark.parametrize(
    "text",
    ["What is TTFT?", "  two  spaces\tand\ta tab\n\n", "naïve café, 東京, 🚰", "", "<|im_end|", "x" * 300],
    ids=["question", "spaces", "unicode", "empty", "almost-special", "long-word"],
)
def test_tokenizer_gives_text_back(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_special_tokens(tokenizer: Any) -> None:
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 0, None)
    assert tokenizer.encode("hi<|im_end|>")[-1] == 2


def test_template_is_chatml(tokenizer: Any) -> None:
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def prompt_ids(tokenizer: Any, row: dict[str, Any]) -> list[int]:
    text = tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def test_oracle_is_broad() -> None:
    assert len(PROMPTS) >= 40
    assert len({row["id"] for row in PROMPTS}) == len(PROMPTS)
    assert min(row["margin"] for row in PROMPTS) >= ORACLE["margin"] >= 2
    assert any(len(row["messages"]) > 2 for row in PROMPTS)
    assert any(row["messages"][0]["role"] == "system" for row in PROMPTS)
    assert any(row["id"].startswith("unknown-") for row in PROMPTS)


def test_oracle_counts_tokens(tokenizer: Any) -> None:
    for row in PROMPTS:
        assert len(prompt_ids(tokenizer, row)) == row["prompt_tokens"], row["id"]
        assert len(tokenizer.encode(row["answer"], add_special_tokens=False)) + 1 == row["answer_tokens"], row["id"]


def test_generation_gives_the_oracle(model: Any, tokenizer: Any) -> None:
    for row in PROMPTS[::24]:
        prompt = torch.tensor([prompt_ids(tokenizer, row)])
        tokens = model.generate(prompt, max_new_tokens=48, do_sample=False)[0, prompt.shape[1] :].tolist()
        assert tokenizer.decode(tokens[: tokens.index(2)]) == row["answer"], row["id"]


@torch.inference_mode()
def test_batches_give_the_oracle(model: Any, tokenizer: Any) -> None:
    """Greedy output is an answer if each of its tokens is the likeliest behind those before it: one pass tells.

    All in the precision of the oracle; a fourth of them in the other, in which the engine itself answers all.
    """
    asked = PROMPTS if model.dtype == torch.float32 else PROMPTS[::4]
    rows = sorted(asked, key=lambda row: int(row["prompt_tokens"]))
    for group in (rows[i : i + BATCH] for i in range(0, len(rows), BATCH)):
        answers = [[*tokenizer.encode(row["answer"], add_special_tokens=False), 2] for row in group]
        whole = [prompt_ids(tokenizer, row) + answer for row, answer in zip(group, answers, strict=True)]
        batch = tokenizer.pad({"input_ids": whole}, padding_side="left", return_tensors="pt")
        positions = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
        likeliest = model(**batch, position_ids=positions).logits.argmax(-1)
        for row, answer, found in zip(group, answers, likeliest, strict=True):
            assert found[-len(answer) - 1 : -1].tolist() == answer, row["id"]


@torch.inference_mode()
def test_chunks_give_the_oracle_with_its_margin(model: Any, tokenizer: Any) -> None:
    for row in PROMPTS[::16]:
        prompt = prompt_ids(tokenizer, row)
        answer = [*tokenizer.encode(row["answer"], add_special_tokens=False), 2]
        ids, cache, logits = prompt + answer, None, []
        for start in range(0, len(ids), 13):
            out = model(torch.tensor([ids[start : start + 13]]), cache=cache, use_cache=True)
            cache = out.cache
            logits.append(out.logits[0].float())
        top = torch.cat(logits)[len(prompt) - 1 : -1].topk(2, dim=-1)
        assert top.indices[:, 0].tolist() == answer, row["id"]
        assert float((top.values[:, 0] - top.values[:, 1]).min()) >= ORACLE["margin"] - 0.5, row["id"]
