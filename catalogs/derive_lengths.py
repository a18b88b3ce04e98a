"""Moments of request lengths, from the raw traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Row = dict[str, Any]

# The raw copies carry no date of their own.
LENGTHS_AS_OF = "2026-07-30"

# name -> (file, source)
_TRACES = {
    "azure-code-2023": ("azure_llm_2023_code", "Azure/AzurePublicDataset 2023 code, CC BY 4.0"),
    "azure-conv-2023": ("azure_llm_2023_conv", "Azure/AzurePublicDataset 2023 conversation, CC BY 4.0"),
    "mooncake-conversation": ("mooncake_conversation", "Mooncake conversation trace, Apache-2.0"),
    "mooncake-synthetic": ("mooncake_synthetic", "Mooncake synthetic trace, Apache-2.0"),
    "arxiv-summarization": ("vidur_arxiv_lengths", "Vidur arXiv summarisation lengths, MIT"),
}
# Published means only; every request counts as one of these lengths.
_BURSTGPT = (621.0, 126.0)


def length_rows(traces: Path) -> list[Row]:
    """Named length distributions: the moments that rates depend on and percentiles of the prompt."""
    rows = [_from_trace(traces / f"{file}.parquet", name, source) for name, (file, source) in _TRACES.items()]
    return sorted([*rows, _constant("burstgpt", *_BURSTGPT)], key=lambda row: row["name"])


def _from_trace(path: Path, name: str, source: str) -> Row:
    import numpy as np
    from pyarrow import parquet

    table = parquet.read_table(path, columns=["input_tokens", "output_tokens"])
    prompt, output = (table[column].to_numpy().astype(np.float64) for column in ("input_tokens", "output_tokens"))
    return {
        "name": name,
        "input_mean": float(prompt.mean()),
        "output_mean": float(output.mean()),
        "input_sq_mean": float((prompt**2).mean()),
        "output_sq_mean": float((output**2).mean()),
        "cross_mean": float((prompt * output).mean()),
        # Nearest rank from above: a length some request has.
        **{f"input_p{q}": float(np.percentile(prompt, q, method="higher")) for q in (50, 90, 95, 99)},
        "input_max": float(prompt.max()),
        "requests": len(prompt),
        "source": source,
        "as_of": LENGTHS_AS_OF,
    }


def _constant(name: str, prompt: float, output: float) -> Row:
    return {
        "name": name,
        "input_mean": prompt,
        "output_mean": output,
        "input_sq_mean": prompt**2,
        "output_sq_mean": output**2,
        "cross_mean": prompt * output,
        **dict.fromkeys(("input_p50", "input_p90", "input_p95", "input_p99", "input_max"), prompt),
        "requests": None,
        "source": "BurstGPT: published means only, every request counted alike",
        "as_of": LENGTHS_AS_OF,
    }
