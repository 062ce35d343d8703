"""Faithfulness at the circuit sizes of the MIB benchmark, on held-out prompts: EAP-IG against joint searches.

    python benchmarks/mib.py                         # the twin's ioi edges
    python benchmarks/mib.py pocket --task docstring

`joint search` is the order in which the search drops edges: interfering ones first, so that it explains more than the
whole model. `closest to the model` is the order for CMD (`faithful_order`).
"""

import argparse

import torch

import edgewise
from edgewise.circuits.edge_chunks import EdgePatching
from edgewise.circuits.edge_objective import EdgeObjective
from edgewise.circuits.faithful_order import faithful_order
from edgewise.circuits.find_minimal import MinimalSearch
from edgewise.circuits.mib import SIZES, Faithfulness, measure_faithfulness
from edgewise.circuits.minimal import MinimalCircuit
from edgewise.circuits.replay import Replay, record
from edgewise.circuits.streams import wiring_of
from edgewise.tasks.generate import split_task
from edgewise.tasks.pairs import Prompts, Split

MEMORY = 2**31


def replays_of(name: str, task_name: str, n: int, seed: int) -> dict[Split, Replay]:
    model, tokenizer = edgewise.load(name), edgewise.load_tokenizer(name)
    task = split_task(task_name, tokenizer, n, seed)
    prompts = task.prompts()
    replays: dict[Split, Replay] = {}
    for split, pairs in task.splits.items():
        replays[split] = record(model, Prompts(*(x[list(pairs)] for x in prompts)), task.metric)
    return replays


def search_order(objective: EdgeObjective, circuit: MinimalCircuit, ranking: torch.Tensor) -> torch.Tensor:
    """The circuit, what the search dropped, the last dropped first, then the rest by the ranking."""
    numbers = {name: i for i, name in enumerate(objective.names(range(objective.total)))}
    first = [numbers[name] for name in [*circuit.components, *circuit.dropped]]
    return torch.tensor(first + [i for i in ranking.tolist() if i not in {*first}])


def smallest_prefix(objective: EdgeObjective, ranking: torch.Tensor) -> int:
    sizes = torch.unique(torch.logspace(0, torch.tensor(objective.total).log10().item(), 40).round().long())
    masks = ranking.argsort() < sizes[:, None]
    return int(sizes[objective.explained_enough(masks, 0.9)[1].int().argmax()])


def row(name: str, measured: Faithfulness) -> str:
    shares = " | ".join(f"{share:.2f}" for share in measured.explained[:-1])
    return f"| {name} | {shares} | {measured.cpr:.4f} | {measured.cmd:.4f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="pocket-sparse")
    parser.add_argument("--task", default="ioi")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    replays = replays_of(arguments.model, arguments.task, arguments.prompts, arguments.seed)
    wiring = wiring_of(replays["fit"])
    objective = EdgeObjective(replays, wiring, MEMORY)
    scores = EdgePatching(replays["fit"], wiring, MEMORY).attribution(5).mean(0)
    ranking = scores.abs().argsort(descending=True)
    search = MinimalSearch(
        objective, 0.9, ranking, smallest_prefix(objective, ranking), scrutinise=False
    ).run()
    joint = search_order(objective, search, ranking)
    orders = {
        "EAP-IG": ranking,
        "EAP-IG, signed": scores.argsort(descending=True),
        "joint search": joint,
        "closest to the model": faithful_order(objective, [ranking, joint]),
    }
    print(f"| edges | {' | '.join(f'{100 * size:g} %' for size in SIZES[:-1])} | CPR | CMD |")
    print(f"|---|{'---:|' * (len(SIZES) + 1)}")
    for name, order in orders.items():
        print(row(name, measure_faithfulness(objective, order)), flush=True)


if __name__ == "__main__":
    main()
