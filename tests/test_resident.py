"""What commands say of their memory before they begin."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import save_text
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

import edgewise
from edgewise.measure.memory import peak, projected_peak, resident

MB = 2**20


def test_the_most_is_kept_when_memory_is_given_back():
    """In a process of its own: this one may have held more before."""
    code = (
        "from edgewise.measure.memory import peak, projected_peak, resident\n"
        "import numpy\n"
        "before = peak()\n"
        "much = numpy.ones(300 << 17)\n"  # 300 MB
        "held = resident()\n"
        "del much\n"
        "print(before, held, resident(), peak(), projected_peak(0), projected_peak(900 << 20))\n"
    )
    actual = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, held, after, highest, soon, later = map(int, actual.stdout.split())
    assert held > before + 250 * MB and after < held - 250 * MB
    assert highest >= held - MB and soon == highest
    assert abs(later - (after + 900 * MB)) < 20 * MB


def test_what_is_needed_comes_on_top_of_what_is_held():
    assert 0 < resident() <= peak() + MB
    assert projected_peak(10**15) > 10**15


@pytest.mark.slow
def test_a_transcoder_takes_the_memory_that_it_announces(tmp_path, monkeypatch):
    """Of a model of 25M parameters, to 15 percent; in a process of its own."""
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "benchmarks")
    from memory import run  # pyright: ignore

    tokenizer = edgewise.load_tokenizer("pocket")
    sizes: Any = {
        "vocab_size": len(tokenizer), "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8,
        "num_attention_heads": 8, "max_position_embeddings": 128,
    }  # fmt: skip
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    text, settings = (
        save_text(tmp_path / "text.txt", 1000),
        ("--context", 128, "--tokens", "1K", "--batch-size", 4),
    )
    used = run(
        "transcoder", *map(str, (tmp_path / "model", "--data", text, *settings, "--out", tmp_path / "out"))
    )
    assert 0.85 < used.said / used.peak < 1.15, used
