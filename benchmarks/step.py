"""A step of gated training against the same model trained densely with torch's scaled_dot_product_attention.

    python benchmarks/step.py            # ratios; the three kinds of step take turns in one run

`gated` is forward, backward and update with gates and the density's gradient; `distilled` adds the dense model's forward
pass, which the default recipe needs for its target (a choice of recipe, not of attention).
"""

import statistics
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import edgewise

SHAPES = {
    "pocket, T=128, 16 rows": (
        {"n_layer": 6, "n_head": 8, "n_embd": 128, "n_positions": 128, "vocab_size": 820},
        16,
        9,
    ),
    "GPT-2 small, T=512, 1 row": ({"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 512}, 1, 5),
}


def host(shape: dict) -> GPT2LMHeadModel:
    quiet = {
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "activation_function": "gelu_pytorch_tanh",
    }
    return GPT2LMHeadModel(GPT2Config(**shape, **quiet))  # sdpa is what transformers takes by default


def main() -> None:
    print(
        f"{'shape':<28}{'dense':>10}{'gated':>10}{'distilled':>11}{'gated/dense':>13}{'distilled/dense':>17}"
    )
    for name, (shape, rows, rounds) in SHAPES.items():
        torch.manual_seed(0)
        dense, twin = host(shape).train(), edgewise.gate(host(shape)).train()
        context = shape["n_positions"]
        ids = torch.randint(0, dense.config.vocab_size, (rows, context))
        updates = {
            model: torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True) for model in (dense, twin)
        }

        def step(model: GPT2LMHeadModel, gated: bool, distilled: bool) -> float:
            began = time.perf_counter()
            if distilled:
                with torch.no_grad():
                    dense(input_ids=ids, use_cache=False)  # noqa: B023
            if gated:
                with edgewise.tap(model) as seen:
                    loss = model(input_ids=ids, labels=ids, use_cache=False).loss  # noqa: B023
                loss = loss + 0.01 * seen.expected_density.mean()
            else:
                loss = model(input_ids=ids, labels=ids, use_cache=False).loss  # noqa: B023
            loss.backward()
            updates[model].step()  # noqa: B023
            updates[model].zero_grad()  # noqa: B023
            return time.perf_counter() - began

        kinds = {
            "dense": (dense, False, False),
            "gated": (twin, True, False),
            "distilled": (twin, True, True),
        }
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for round_ in range(rounds + 2):
            for kind, arguments in kinds.items():
                spent = step(*arguments)  # pyright: ignore
                if round_ >= 2:
                    seconds[kind].append(spent)
        middle = {kind: statistics.median(found) for kind, found in seconds.items()}
        # ratios of neighbours in time, so that a slow moment of the machine does not count against one kind
        ratio = {
            kind: statistics.median(x / y for x, y in zip(seconds[kind], seconds["dense"], strict=True))
            for kind in ("gated", "distilled")
        }
        print(
            f"{name:<28}{1000 * middle['dense']:>7.0f} ms{1000 * middle['gated']:>7.0f} ms"
            f"{1000 * middle['distilled']:>8.0f} ms{ratio['gated']:>12.2f}x{ratio['distilled']:>16.2f}x"
        )


if __name__ == "__main__":
    main()
