"""Patching every head of a GPT-2-small-shaped model: edgewise against TransformerLens, in one run.

    make bench-patching
    python benchmarks/patching.py                        # edgewise alone
    python benchmarks/patching.py --peer .venv-peer/bin/python

The peer runs in an environment of its own (`make peers`: transformer-lens==4.3.0). Both patch the same random model
(the weights do not matter to the time), read the same 16 pairs of 16 tokens, put each head's clean output at all
positions into the corrupt run, and give the mean logit difference of 144 patched runs. The two take turns.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
from peers import PeerError, ask
from transformers import PreTrainedModel
from transformers.models.gpt2 import GPT2Config, GPT2LMHeadModel

import edgewise
from edgewise.circuits.edge_chunks import EdgePatching
from edgewise.circuits.heads import patch_heads
from edgewise.circuits.replay import record
from edgewise.circuits.streams import wiring_of
from edgewise.tasks.pairs import Prompts

MEMORY = 2**30
SIZES = (
    (12, 12, 16, 16),
    (12, 12, 4, 16),
    (12, 12, 64, 16),
    (12, 12, 16, 64),
    (12, 6, 16, 16),
    (6, 12, 16, 16),
)
FIRST = {"from the first token": 0, "from the tenth token, as in indirect objects": 9}


def pairs(n: int, length: int, first: int, seed: int = 0) -> Prompts:
    """Random pairs that differ in one token and end alike; another random token is the wrong answer."""
    generator = torch.Generator().manual_seed(seed)
    clean = torch.randint(0, 50_000, (n, length), generator=generator)
    corrupt = clean.clone()
    corrupt[:, first] = torch.randint(0, 50_000, (n,), generator=generator)
    columns = torch.randint(0, 50_000, (n, 2), generator=generator)
    return Prompts(
        clean, corrupt, torch.full((n,), length - 1), columns, torch.tensor([[1.0, -1.0]]).repeat(n, 1)
    )


def random_model(layers: int = 12, heads: int = 12) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=layers, n_head=heads, n_embd=64 * heads)).eval()


def ours(model: PreTrainedModel, given: Prompts) -> tuple[float, torch.Tensor]:  # seconds, [layers, heads]
    """The two recorded runs are part of the time."""
    began = time.perf_counter()
    with torch.no_grad():
        replay = record(model, given, "logit difference")
        scores = patch_heads(replay, replay.corrupt, replay.clean, MEMORY)
    return time.perf_counter() - began, scores.mean(-1)


def peer(python: str, folder: Path, given: Prompts) -> tuple[float, torch.Tensor]:  # seconds, [layers, heads]
    torch.save(given._asdict(), folder / "pairs.pt")
    try:
        answer = ask(python, "peer_transformer_lens.py", str(folder))
    except PeerError as error:
        sys.exit(str(error))
    return answer["seconds"], torch.tensor(answer["scores"])


def compare(python: str, model: PreTrainedModel, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        random_model().save_pretrained(folder)
        print("144 heads, 16 prompts x 16 tokens, one direction; the best of", rounds)
        print(f"{'pairs differ':<46}{'edgewise s':>11}{'peer s':>9}{'ratio':>7}{'largest difference':>20}")
        for name, first in FIRST.items():
            given = pairs(16, 16, first)
            ours(model, given)  # warm up
            times: list[tuple[float, float]] = []
            gap = 0.0
            for _ in range(rounds):
                edgewise_seconds, scores = ours(model, given)
                peer_seconds, other = peer(python, folder, given)
                times.append((edgewise_seconds, peer_seconds))
                gap = max(gap, (scores - other).abs().max().item())
            edgewise_seconds, peer_seconds = (min(column) for column in zip(*times, strict=True))
            ratio = peer_seconds / edgewise_seconds
            print(
                f"{name:<46}{edgewise_seconds:>11.2f}{peer_seconds:>9.2f}{ratio:>7.1f}{gap:>20.1e}",
                flush=True,
            )


def costs() -> None:
    """How the time grows, as a ratio to the first line."""
    print("\nthe cost of patching all heads, against 16 prompts x 16 tokens x 144 heads")
    print(f"{'layers x heads':<16}{'prompts':>8}{'tokens':>8}{'seconds':>9}{'ratio':>7}")
    base = 0.0
    for layers, heads, n, length in SIZES:
        model = edgewise.install(random_model(layers, heads))
        given = pairs(n, length, 0)
        seconds = min(ours(model, given)[0] for _ in range(2))
        base = base or seconds
        print(
            f"{f'{layers} x {heads}':<16}{n:>8}{length:>8}{seconds:>9.2f}{seconds / base:>7.2f}", flush=True
        )


def attribution(model: PreTrainedModel) -> None:
    given = pairs(16, 16, 0)
    replay = record(model, given, "logit difference")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("\nEAP-IG, 16 prompts x 16 tokens")
    for steps in (1, 5):
        began = time.perf_counter()
        wiring = wiring_of(replay.select(slice(0, 1)))
        EdgePatching(replay, wiring, MEMORY).attribution(steps)
        seconds = time.perf_counter() - began
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
        print(f"{steps} steps, {wiring.count:,} edges: {seconds:.1f} s, peak memory grew by {grown:.2f} GB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", help="the python of an environment with transformer-lens")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    model = edgewise.install(random_model())
    attribution(model)  # first: peak memory is the process's
    if arguments.peer:
        print()
        compare(arguments.peer, model, arguments.rounds)
    costs()


if __name__ == "__main__":
    main()
