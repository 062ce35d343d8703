"""Loss, density and edges of a model on rows of tokens, with the gates it is used with: deterministic."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

from edgewise import pocket
from edgewise.core.errors import EdgewiseError
from edgewise.data import IGNORE, Batch, held_out_only, shipped_data
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.tap import tap
from edgewise.measure.memory import most_with
from edgewise.models.checkpoint import load, shared_tokenizer
from edgewise.models.host import TWIN_KEY
from edgewise.models.info import info
from edgewise.models.lora import ADAPTERS_KEY

if TYPE_CHECKING:
    from edgewise.measure.sinks import Sinks

_TOKENS_AT_ONCE = 4096
_LOGITS_AT_ONCE = 1 << 26  # 256 MB in single precision, and as much for their softmax


@dataclass(frozen=True)
class Measured:
    """What a model does to held-out rows."""

    ce: float
    """Cross-entropy in nats per token."""
    density_per_head: Tensor  # [layers, heads]
    edges_per_query_per_head: Tensor  # [layers, heads]
    tokens: int
    """How many tokens were asked for."""
    sinks: "Sinks | None" = None
    """What rests on first tokens, if that was asked for."""

    @property
    def density(self) -> float:
        return self.density_per_head.mean().item()

    @property
    def edges_per_query(self) -> float:
        return self.edges_per_query_per_head.mean().item()

    @property
    def heads_closed(self) -> int:
        return int((self.density_per_head == 0).sum())

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.ce, 700.0))

    def to_dict(self) -> dict[str, Any]:
        return {
            "ce": self.ce,
            "perplexity": self.perplexity,
            "density": self.density,
            "edges_per_query": self.edges_per_query,
            "heads_closed": self.heads_closed,
            "tokens": self.tokens,
            "density_per_head": self.density_per_head.tolist(),
            "edges_per_query_per_head": self.edges_per_query_per_head.tolist(),
            **({} if self.sinks is None else {"sinks": self.sinks.to_dict()}),
        }


def run_model(model: nn.Module, batch: Batch) -> Tensor:  # -> [rows, context, vocabulary]
    """Logits of packed rows."""
    return run_rows(model, batch).logits


def run_rows(model: nn.Module, batch: Batch) -> Any:
    """A forward pass over packed rows. Positions tell transformers where documents begin, so that attention stays inside
    them."""
    where = {} if batch.positions is None else {"position_ids": batch.positions}
    return model(input_ids=batch.ids, use_cache=False, **where)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:  # [rows, t, vocabulary], [rows, t] -> []
    """In nats, summed over the positions that ask for something."""
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE, reduction="sum"
    )


def parts(batch: Batch, rows: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
    """A batch in pieces of at most `rows` rows, on a device."""
    for first in range(0, len(batch.ids), rows):
        yield Batch(*(None if x is None else x[first : first + rows].to(device) for x in batch))  # pyright: ignore


def rows_at_once(batch: Batch, vocabulary: int = 1) -> int:
    """Rows to a forward pass. Where logits are computed they take most of the memory: say of how many words."""
    return max(1, min(_TOKENS_AT_ONCE, _LOGITS_AT_ONCE // vocabulary) // batch.ids.shape[1])


def numbers_of_row(t: int, width: int, inner: int, heads: int, first: int = 0) -> int:
    """What a row of t tokens takes while it passes a layer, `first` tokens before it: streams, what is inside an MLP, two
    attention maps."""
    return t * (12 * width + 3 * inner) + 2 * heads * t * (t + first)


def width_inside_mlps(model: Any) -> int:
    text = model.config.get_text_config()
    return getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * text.hidden_size


def bytes_of_measuring(model: Any, batch: Batch) -> int:
    """What measuring takes at most: a piece's logits and their softmax."""
    vocabulary, t = vocabulary_of(model), batch.ids.shape[1]
    width, heads = model.config.get_text_config().hidden_size, gates_of(model)[0].heads
    row = 2 * t * vocabulary + numbers_of_row(t, width, width_inside_mlps(model), heads)
    return 4 * rows_at_once(batch, vocabulary) * row


def vocabulary_of(model: nn.Module) -> int:
    """Words whose logits a model computes."""
    found: Any = model
    return len(found.get_output_embeddings().weight)


@torch.no_grad()
def measure(
    model: nn.Module,
    batch: Batch,
    rows: int | None = None,
    total: Callable[[Tensor], Tensor] = lambda x: x,
    each: Callable[[], None] = lambda: None,
) -> Measured:
    """Measure a model on a batch, `rows` rows at a time.

    `total` adds a tensor up over the processes of a distributed run, each of which was given its share of the batch. `each`
    is called after every piece, for a progress bar.
    """
    device = next(model.parameters()).device
    layers, heads = len(gates_of(model)), gates_of(model)[0].heads
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # loss, tokens
    edges = torch.zeros(3, layers, heads, dtype=torch.float64, device=device)  # opened, pairs, queries
    with evaluating(model):
        for part in parts(batch, rows or rows_at_once(batch, vocabulary_of(model)), device):
            with tap(model) as seen:
                logits = run_model(model, part)
            loss = cross_entropy(logits, part.targets)
            sums += torch.stack([loss.double(), (part.targets != IGNORE).sum().double()])
            for count in seen.counts:
                for i, x in enumerate((count.opened, count.pairs, count.queries)):
                    edges[i, count.layer] += x.expand_as(count.opened).sum(0)
            each()
    loss, asked = total(sums).tolist()
    opened, pairs, queries = total(edges).cpu().float()
    if not asked:
        raise EdgewiseError("there is nothing to predict in the held-out rows")
    return Measured(loss / asked, opened / pairs, opened / queries, int(asked))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Hold a model in eval mode, in which gates are deterministic."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


# ------------------------------------------------------------------------------------------------- `edgewise eval`


def evaluate_models(
    names: Sequence[str | Path],
    data: Any = None,
    context: int | None = None,
    tokens: int = 65_536,
    sinks: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Measured]:
    """Measure models on the same rows: one, or a dense model and its twin side by side. `say` is told how much memory that
    will take.

    >>> edgewise.evaluate_models(["pocket", "runs/pocket-sparse"])
    """
    if not names:
        raise EdgewiseError("name at least one model to evaluate")
    longest = min(info(name).context or 1024 for name in names)
    if data is None:
        batch = _own_rows(names, tokens)
    else:
        rows = context or min(longest, 1024)
        if rows > longest:
            raise EdgewiseError(f"--context {rows} is longer than the models' own context, {longest}")
        batch = held_out_only(data, shared_tokenizer(names), rows, tokens=tokens)
    results = {}
    for name in names:
        model = load(name)
        say(f"{name}: memory about {most_with(bytes_of_measuring(model, batch)) / 2**30:.1f} GB in all")
        pieces = -(-len(batch.ids) // rows_at_once(batch, vocabulary_of(model)))
        with Progress(transient=True) as progress:
            task = progress.add_task(escape(str(name)), total=pieces)
            results[str(name)] = measure(model, batch, each=lambda task=task: progress.advance(task))
            if sinks:
                from edgewise.measure.sinks import SINK_TOKENS, measure_sinks

                few = next(parts(batch, max(1, SINK_TOKENS // batch.ids.shape[1])))
                results[str(name)] = replace(results[str(name)], sinks=measure_sinks(model, few))
    return results


def _own_rows(names: Sequence[str | Path], tokens: int) -> Batch:
    """Held-out rows of the text that a shipped model brings along, and its twin with it."""
    origins = {shipped_origin(str(name)): name for name in names}
    for origin, name in origins.items():
        if origin not in pocket.NAMES:
            raise EdgewiseError(
                f"{name} brings no text of its own; give --data: a file, a folder or a dataset's name"
            )
    if len(origins) > 1:
        raise EdgewiseError(f"{' and '.join(origins)} know different texts; evaluate them one by one")
    shipped = shipped_data(next(iter(origins)), seed=0)
    assert shipped is not None
    return next(parts(shipped.held_out, max(1, tokens // shipped.train.context)))


def shipped_origin(name: str) -> str:
    """The shipped dense model that a name stands for or that a twin's folder was made from, else the name itself."""
    if name in pocket.NAMES:
        return name.removesuffix("-sparse")
    for file, *keys in (("summary.json", "model"), ("config.json", TWIN_KEY, ADAPTERS_KEY, "base")):
        try:
            found = json.loads((Path(name) / file).read_text())
            for key in keys:
                found = found[key]
            return str(found)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return name


def print_evaluation(results: dict[str, Measured], heads: bool = False, out: Path | None = None) -> None:
    """A table, one model to a row; with `heads` also each head's edges per query."""
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file or a pipe has no width to fit
    table = Table("model", "loss", "perplexity", "density", "edges per query", "heads closed")
    first = next(iter(results.values()))
    for name, found in results.items():
        against = "" if found is first else f" ({found.ce - first.ce:+.4f})"
        table.add_row(
            escape(name),
            f"{found.ce:.4f}{against}",
            f"{found.perplexity:.3f}",
            f"{found.density:.2%}",
            f"{found.edges_per_query:.2f}",
            f"{found.heads_closed} of {found.density_per_head.numel()}",
        )
    console.print(table)
    console.print(f"{first.tokens:,} held-out tokens; edges per query are per head")
    if first.sinks is not None:
        console.print(_sink_table(results))
    for name, found in results.items() if heads else ():
        columns = [f"H{head}" for head in range(found.density_per_head.shape[1])]
        per_head = Table("", *columns, title=escape(f"{name}: edges per query"))
        for layer, row in enumerate(found.edges_per_query_per_head.tolist()):
            per_head.add_row(f"L{layer}", *(f"{x:.2f}" if x else "·" for x in row))
        console.print(per_head)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(
            json.dumps({name: found.to_dict() for name, found in results.items()}, indent=2) + "\n"
        )
        console.print(f"Written to {out}", markup=False, highlight=False, soft_wrap=True)


def _sink_table(results: dict[str, Measured]) -> Table:
    table = Table(
        "attention of a query and head", "first token", "all tokens", "heads with over half on the first"
    )
    for name, found in results.items():
        if (sinks := found.sinks) is not None:
            heads = f"{sinks.heads} of {sinks.first.numel()}"
            table.add_row(escape(name), f"{sinks.first.mean():.3f}", f"{sinks.total.mean():.3f}", heads)
    return table
