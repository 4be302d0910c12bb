"""The built-in demo model: a two-million-parameter Llama that answers questions about serving."""

from pathlib import Path

__all__ = ["model_path", "oracle_path"]


def model_path() -> Path:
    """Folder of the trained model: config, weights, tokenizer with its chat template."""
    return Path(__file__).parent / "model"


def oracle_path() -> Path:
    """JSON file of prompts with the exact greedy answers that the model gives by a wide margin."""
    return Path(__file__).parent / "oracle.json"
