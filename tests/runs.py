"""Small runs of post-training: tiny models that read text of the pocket world, and what the runs leave behind."""

import io
import signal
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers.models.gpt2 import GPT2Config, GPT2LMHeadModel
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

import edgewise
from edgewise.cli.flags import flags_of
from edgewise.cli.main import COMMANDS, errors_in_one_line, main
from edgewise.pocket import stream
from edgewise.training.callbacks import Callback
from edgewise.training.trainer import Trainer

CONTEXT, ROWS, STEPS = 32, 4, 6


def save_host(folder: Path, kind: str = "gpt2", dtype: torch.dtype = torch.float32) -> Path:
    """A tiny random model with the pocket tokenizer. The Llama has no biases: those of keys get no gradient but rounding."""
    tokenizer = edgewise.load_tokenizer("pocket")
    sizes = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": CONTEXT, "initializer_range": 0.2,
        "bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id,
    }  # fmt: skip
    torch.manual_seed(0)
    if kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(**sizes))
    else:
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2))
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_text(path: Path, rows: int = 60) -> Path:
    lines = [
        " ".join(word for sentence in row if sentence for word in sentence.words + sentence.ending)
        for row in stream.training_sentences(3, 0, rows)
    ]
    path.write_text("\n".join(lines))
    return path


def save_llama_and_text(workspace: Path) -> Path:
    """A folder to run in."""
    save_host(workspace / "llama", "llama")
    save_text(workspace / "text.txt")
    return workspace


def settings(out: Path, steps: int = STEPS, **others) -> edgewise.SparsifyConfig:
    """A snapshot after every step, and no picture: drawing takes as long as a small run."""
    small = {"batch_size": ROWS, "save_minutes": 0, "tokens": str(steps * ROWS * CONTEXT), "plot": False}
    return edgewise.SparsifyConfig(out=out, **{**small, **others})


def command(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error of `edgewise ...`."""
    return outcome(lambda: main([str(argument) for argument in arguments]))


def outcome(call: Callable[[], object], name: str = "sparsify") -> tuple[int, str, str]:
    """The same of a call of the library that the command `name` makes."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            with errors_in_one_line(flags_of(COMMANDS[name])):
                call()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, out.getvalue(), err.getvalue()


def said(err: str) -> str:
    """The one line in which a command gave up."""
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("edgewise: ")]
    return line


class BeforeStep(Callback):
    """Let something happen in the middle of a run: `action(run)` after so many steps."""

    def __init__(self, step: int, action: Callable[[Any], object]):
        self.step, self.action = step, action

    def on_step_begin(self, trainer: Trainer) -> None:
        if trainer.state.step == self.step:
            self.action(trainer.run)


def interrupt_at(step: int, number: int = signal.SIGINT) -> BeforeStep:
    """Ctrl-C in the middle of a step; the run ends with the step after it."""
    return BeforeStep(step, lambda run: signal.raise_signal(number))


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "twin.safetensors")


def farthest(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest difference between two models' weights."""
    assert a.keys() == b.keys()
    return max((a[key].float() - b[key].float()).abs().max().item() for key in a)


def mean_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The mean absolute difference of two models' weights, of the tensor where it is largest."""
    assert a.keys() == b.keys()
    return max((a[key].float() - b[key].float()).abs().mean().item() for key in a)


def snapshot_names(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "snapshots").iterdir())
