"""Train an embedded model from nothing, or continue it to see that it was finished.

    python -m edgewise.pocket.train pocket                      # about an hour on two cores
    python -m edgewise.pocket.train pocket-addition             # a few minutes on one core
    python -m edgewise.pocket.train pocket --check-plateau      # 15 minutes; adds its result to made.json
    python -m edgewise.pocket.train pocket --out runs/try --tokens 1000000    # a miniature

An interrupted training goes on where it was when the same line is given again.
"""

import hashlib
import json
import math
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from edgewise.core.files import write_json
from edgewise.pocket import folder
from edgewise.pocket.recipe import RECIPES, PocketRecipe

# The files that decide what the weights become.
SOURCES = (
    "../tasks/words.py",
    "../tasks/wordings.py",
    "world.py",
    "stream.py",
    "addition.py",
    "tokenizer.py",
    "recipe.py",
    "train.py",
)
PLATEAU_SEED = 1_000_003  # its text is none that training has seen


@dataclass(frozen=True)
class Config:
    """Train one of the embedded models."""

    name: Annotated[Literal["pocket", "pocket-addition"], tyro.conf.Positional]
    """Which model."""
    out: Path | None = None
    """Folder to write; the package's own weights folder if not given."""
    tokens: int | None = None
    """How many tokens to train on, instead of the recipe's."""
    seed: int = 0
    """Seed of the weights and of the text."""
    threads: int = 2
    """Cores to use; the batch is split evenly among them."""
    rate: float | None = None
    """Highest learning rate, instead of the recipe's."""
    state: Path = Path("runs/pocket")
    """Folder for the state of an unfinished training."""
    check_plateau: bool = False
    """Do not train, but go on with the finished model in --out: is there anything left to gain?"""

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tokens < RECIPES[self.name].tokens_per_step:
            raise ValueError(f"--tokens must be at least one step: {RECIPES[self.name].tokens_per_step}")


def schedule(step: int, steps: int) -> float:
    """The share of the highest rate: a short warm-up, full rate until half-time, linear decay to zero."""
    warm = min(200, steps // 10 + 1)
    return min((step + 1) / warm, 1.0, 2 * (steps - step) / steps)


class Training:
    """A training that can be saved after any step and taken up again."""

    def __init__(
        self, recipe: PocketRecipe, model: GPT2LMHeadModel, steps: int, rate: float, threads: int = 1
    ):
        self.recipe, self.model, self.steps, self.rate = recipe, model, steps, rate
        # Muon for the matrices was tried: torch computes it in bfloat16, which made a step 2.6 times as long
        # on a CPU, and in the first steps the loss fell no faster.
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )
        self.done, self.seconds, self.losses = 0, 0.0, []
        # Each thread computes a part of the batch by itself. Torch's own threads wait for each other in every
        # operation, which on a machine that has other work to do made this training several times slower.
        self.threads = threads
        torch.set_num_threads(1)
        self.pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def _part(self, read: Tensor, say: Tensor) -> tuple[float, tuple[Tensor, ...]]:
        """The loss and the gradients of a part of the batch."""
        loss = self.recipe.loss(self.model, read, say)
        return loss.item(), torch.autograd.grad(loss, list(self.model.parameters()))

    def step(self, seed: int) -> float:
        """One update; returns the loss before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * schedule(self.done, self.steps)
        parts = [tensor.chunk(self.threads) for tensor in self.recipe.batch(seed, self.done)]
        losses, gradients = zip(*self.pool.map(self._part, *parts), strict=True)
        for parameter, *of_parts in zip(self.model.parameters(), *gradients, strict=True):
            parameter.grad = torch.stack(of_parts).mean(0)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1
        return sum(losses) / len(losses)

    def run(self, seed: int, title: str, state: Path | None = None) -> None:
        """All remaining steps, with a progress bar. The state is saved every few minutes and on Ctrl-C."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn(
                "{task.percentage:.1f} % · loss {task.fields[loss]:.4f} · "
                "{task.fields[speed]:,.0f} tokens/s · left"
            ),
            TimeRemainingColumn(),
        )
        began = last_saved = time.monotonic() - self.seconds
        mean, first = math.nan, self.done
        with Progress(*columns) as progress:
            bar = progress.add_task(title, total=self.steps, completed=self.done, loss=mean, speed=0.0)
            start = time.monotonic()
            try:
                while self.done < self.steps:
                    loss = self.step(seed)
                    mean = loss if math.isnan(mean) else mean + 0.02 * (loss - mean)
                    now = time.monotonic()
                    self.seconds = now - began
                    speed = (self.done - first) * self.recipe.tokens_per_step / (now - start)
                    progress.update(bar, completed=self.done, loss=mean, speed=speed)
                    if self.done % max(1, min(500, self.steps // 8)) == 0:
                        self.model.eval()
                        scores = self.recipe.glance(self.model)
                        self.model.train()
                        self.losses.append({"step": self.done, "training loss": mean, **scores})
                        shown = " · ".join(f"{key} {value:.3f}" for key, value in scores.items())
                        progress.console.print(
                            f"{self.seconds:6.0f} s · step {self.done}/{self.steps} · {speed:,.0f} tokens/s"
                            f" · training loss {mean:.4f} · {shown}",
                            soft_wrap=True,
                        )
                    if state is not None and now - last_saved > 180:
                        self.save(state)
                        last_saved = now
            except KeyboardInterrupt:
                if state is not None:
                    self.save(state)
                    progress.console.print(
                        f"Saved in {state}. The same line again goes on from step {self.done}."
                    )
                sys.exit(130)

    def save(self, path: Path) -> None:
        """Write the state beside its place and move it there, so that a half-written one is never read."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "done": self.done,
                "seconds": self.seconds,
                "losses": self.losses,
            },
            new,
        )
        new.replace(path)

    def resume(self, path: Path) -> None:
        """Take up what `save` wrote."""
        saved = torch.load(path, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.done, self.seconds, self.losses = saved["done"], saved["seconds"], saved["losses"]


def revision() -> dict[str, str | None]:
    """Which script this is: the commit, if there is one, and a hash of the files that decide the weights."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((package / name).read_bytes())
    git = subprocess.run(
        ["git", "-C", str(package), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    commit = git.stdout.strip() if git.returncode == 0 else None
    return {"commit": commit, "sources sha256": digest.hexdigest()}


def train(config: Config, recipe: PocketRecipe | None = None) -> None:
    """Train from scratch and write the finished folder; `recipe`: instead of the model's own."""
    made_by = revision()  # now, and not after an hour in which the files may have changed
    recipe = recipe or RECIPES[config.name]
    out = config.out or folder(config.name)
    steps = (config.tokens or recipe.tokens) // recipe.tokens_per_step
    rate = config.rate or recipe.rate
    torch.manual_seed(config.seed)
    training = Training(recipe, GPT2LMHeadModel(recipe.config), steps, rate, config.threads)
    key = json.dumps([config.name, config.seed, steps, rate, made_by["sources sha256"]])
    state = config.state / f"{config.name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.pt"
    if state.exists():
        training.resume(state)
        print(f"Going on from step {training.done} of {state}.")
    training.run(config.seed, config.name, state)

    training.model.eval()
    results = recipe.measure(training.model)
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    training.model.save_pretrained(part)
    recipe.tokenizer().save_pretrained(part)
    made = {
        "command": f"python -m edgewise.pocket.train {' '.join(sys.argv[1:])}",
        "script": made_by,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": config.seed,
        "steps": steps,
        "tokens": steps * recipe.tokens_per_step,
        "highest rate": rate,
        "threads": config.threads,
        "seconds": round(training.seconds, 1),
        "torch": torch.__version__,
        "held out": results,
        "history": training.losses,
    }
    write_json(part / "made.json", made, indent=2)
    if out.exists():
        shutil.rmtree(out)
    part.replace(out)
    state.unlink(missing_ok=True)
    print(f"Wrote {out}: {json.dumps(results)}")


def check_plateau(config: Config, recipe: PocketRecipe | None = None) -> None:
    """Go on training the finished model on new text, as long as a post-training would; note the gain.

    The rate is the modest one of a post-training: 3e-4, with a warm-up and a linear decay to zero. Default
    length: 7.2 million tokens, which is 15 minutes at 8,000 tokens a second.
    """
    recipe = recipe or RECIPES[config.name]
    out = config.out or folder(config.name)
    model = GPT2LMHeadModel.from_pretrained(out)
    assert isinstance(model, GPT2LMHeadModel)
    steps = (config.tokens or min(7_200_000, recipe.tokens)) // recipe.tokens_per_step
    rate = config.rate or 3e-4
    before = recipe.measure(model.eval())
    training = Training(recipe, model.train(), steps, rate, config.threads)
    training.run(config.seed + PLATEAU_SEED, f"{config.name}, on and on")
    after = recipe.measure(model.eval())
    gain = before["loss"] - after["loss"]
    made = json.loads((out / "made.json").read_text())
    made["plateau"] = {
        "tokens": steps * recipe.tokens_per_step,
        "highest rate": rate,
        "seconds": round(training.seconds, 1),
        "held out before": before,
        "held out after": after,
        "gain in nats": gain,
    }
    write_json(out / "made.json", made, indent=2)
    print(f"Gain: {gain:.4f} nats of held-out loss ({before['loss']:.4f} -> {after['loss']:.4f}).")


def main() -> None:
    """The command line."""
    config = tyro.cli(Config)
    print(json.dumps(asdict(config), default=str))
    (check_plateau if config.check_plateau else train)(config)


if __name__ == "__main__":
    main()
