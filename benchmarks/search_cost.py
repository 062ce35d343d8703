"""What a joint search costs, against heads, prompts and length: processor seconds and circuits evaluated.

    python benchmarks/search_cost.py             # a minute or two of one core
    python benchmarks/search_cost.py --edges     # edges instead of heads

Random GPT-2-shaped models of width 16 a head: the circuits mean nothing, and need most of the heads, which makes a search
long. The first line is the base; each of the others changes one number.
"""

import argparse
import time

import torch
from patching import pairs, random_model

import edgewise
from edgewise.circuits.edge_objective import EdgeObjective
from edgewise.circuits.find_minimal import MinimalSearch
from edgewise.circuits.head_objective import HeadObjective
from edgewise.circuits.replay import record
from edgewise.circuits.streams import wiring_of

SIZES = ((4, 4, 8, 12), (8, 4, 8, 12), (4, 8, 8, 12), (4, 4, 16, 12), (4, 4, 8, 24))
THRESHOLD = 0.8


def measure(layers: int, heads: int, n: int, length: int, edges: bool) -> str:
    model = edgewise.install(random_model(layers, heads))
    replay = record(model, pairs(n, length, first=1), "logit difference")
    replay = replay.select(replay.effect.abs().argsort(descending=True))
    began = time.process_time()
    objective = (
        EdgeObjective({"fit": replay}, wiring_of(replay), 2**30)
        if edges
        else HeadObjective({"fit": replay}, 2**30)
    )
    ranking = objective.gradient(torch.ones(1, objective.total)).gradient[0].cpu().argsort(descending=True)
    masks = ranking.argsort() < torch.linspace(0, objective.total, 17).long()[1:, None]
    _, enough = objective.explained_enough(masks, THRESHOLD)
    prefix = int(masks[int(enough.int().argmax())].sum())
    results = MinimalSearch(objective, THRESHOLD, ranking, prefix, scrutinise=False).run()
    seconds = time.process_time() - began
    sizes = f"{objective.total:,} | {n} | {length} | {prefix} | {results.size}"
    return f"| {layers} x {heads} | {sizes} | {objective.evaluated:,} | {seconds:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--edges", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| layers x heads | components | prompts | tokens | prefix | minimal | circuits evaluated | CPU seconds |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for size in SIZES:
        print(measure(*size, edges=arguments.edges), flush=True)


if __name__ == "__main__":
    main()
