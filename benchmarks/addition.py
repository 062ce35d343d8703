"""The addition picture in numbers, over all 10,000 sums: what the twin's open edges join, and what a carry adds to them.

python benchmarks/addition.py
"""

import torch
from torch import Tensor

import edgewise
from edgewise.pocket import addition, evaluate

KEYS = {"tens": (0, 3), "ones": (1, 4), "+ and =": (2, 5), "question marks": range(6, 11)}
ASKED = {"hundreds": 8, "tens": 9, "ones": 10}
"""The digits of the sum that are not always 0, by the position that says them."""


@torch.no_grad()
def edges_of(model: torch.nn.Module, tokens: Tensor) -> Tensor:  # [n, 11] -> [n, layers, queries, keys]
    """Open edges, added up over heads."""
    results = []
    for some in tokens.split(1000):
        with edgewise.tap(model, read=["weights"]) as activations:
            model(input_ids=some)
        results.append(
            torch.stack([(w > 0).sum(1) for _, w in sorted(activations.last["weights"].items())], 1)
        )
    return torch.cat(results).float()


def main() -> None:
    tokens, _ = addition.every_sum()
    a, b = 10 * tokens[:, 0] + tokens[:, 1], 10 * tokens[:, 3] + tokens[:, 4]
    ones = (tokens[:, 1] + tokens[:, 4]) >= 10
    carries = ones.long() + (a + b >= 100).long()
    for name in ("pocket-addition", "pocket-addition-sparse"):
        model = edgewise.load(name).eval()
        edges = edges_of(model, tokens)
        print(f"\n{name}: {evaluate.measure_addition(model)['sums']:.2%} of sums right\n")
        print("| carries | sums | open edges | " + " | ".join(f"L{i}" for i in range(edges.shape[1])) + " |")
        print("|---:|---:|---:|" + "---:|" * edges.shape[1])
        for count in range(3):
            mean = edges[carries == count].sum((2, 3)).mean(0).tolist()
            cells = " | ".join(f"{each:.1f}" for each in mean)
            print(f"| {count} | {int((carries == count).sum()):,} | {sum(mean):.1f} | {cells} |")
        if name.endswith("sparse"):
            print("\nOpen edges of the last three question marks, ones with a carry / without:\n")
            print(f"| says the | {' | '.join(KEYS)} |\n|---|{'---:|' * len(KEYS)}")
            for digit, query in ASKED.items():
                read = [edges[:, :, query, list(keys)].sum((1, 2)) for keys in KEYS.values()]
                cells = [f"{each[ones].mean():.2f} / {each[~ones].mean():.2f}" for each in read]
                print(f"| {digit} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
