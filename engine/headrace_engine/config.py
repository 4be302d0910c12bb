"""What an engine process is told at start: plain values, picklable, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_engine.core.failure import StartError
from headrace_wire.protocol import PAGE_TOKENS


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of one engine, already parsed and checked at the command line."""

    path: str  # model folder: config.json, safetensors, tokenizer.json
    served_name: str
    max_model_len: int | None = None  # tokens, prompt + output; None: the model's own limit
    max_sequences: int = 16  # requests that hold KV at one time
    max_batch_tokens: int = 512  # tokens computed in one step, decode and prefill together
    dtype: str = "auto"  # auto (the checkpoint's) | bfloat16 | float32
    kv_cache_bytes: int | None = None  # None: from memory_percent
    memory_percent: int = 90  # of the memory limit, for weights, KV and everything else
    threads: int = 0  # of the runner; 0: the CPUs this process may use
    instance: str = ""  # stable id of this process (pod name)
    log_level: str = "info"  # debug | info | warning | error
    threads_wait: str = ""  # how threads wait, in words, where the environment is set already; empty: the core sets it
    record_steps: str = ""  # file that gets a line for each step; empty: none

    @property
    def page_tokens(self) -> int:
        """Tokens in one page of KV: the same on every backend."""
        return PAGE_TOKENS

    def context(self, positions: int) -> int:
        """Tokens of prompt and output on a model of so many positions. Raises StartError where it has fewer."""
        wanted = self.max_model_len or positions
        if wanted > positions:
            told = f"a context of {wanted} tokens was asked for (--max-model-len), the model's own is {positions}"
            raise StartError("ModelInvalid", told, "config.json")
        return wanted

    @property
    def contradiction(self) -> str:
        """Why no engine can run with these settings; empty where one can."""
        if self.max_batch_tokens >= self.max_sequences:
            return ""
        return (
            f"--max-batch-tokens is {self.max_batch_tokens}, below --max-sequences, which is {self.max_sequences}: "
            "each running sequence takes a token of every step; raise the one or lower the other"
        )
