"""The tables of docs/research/2026-11-18-scaling.md: what each stage would cost, 124M to 70B parameters, computed.

    python benchmarks/scaling.py            # print them
    python benchmarks/scaling.py --write    # and put them into docs/research/2026-11-18-scaling.md, between its markers

Models are sizes only, written down below; no network is needed.
"""

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from transformers.models.gpt2 import GPT2Config
from transformers.models.llama import LlamaConfig

from edgewise.cli.tables.plan import short, span
from edgewise.planning import flops, memory
from edgewise.planning.flops import Work
from edgewise.planning.gpu_layout import Layout, obstacle, smallest_layout
from edgewise.planning.hardware import A100, CPU_SHARE, GIB, H100, ThisMachine
from edgewise.planning.plan import PROMPT_TOKENS, plan
from edgewise.planning.setup import Setup
from edgewise.planning.shape import Shape, find_shape, shape_of
from edgewise.training.sparsify.recipe import RECIPES
from edgewise.training.transcoder.config import TranscoderConfig

LLAMA = {"dtype": "bfloat16", "max_position_embeddings": 131_072}
CONFIGS = {
    "GPT-2": GPT2Config(),
    "SmolLM2-135M": LlamaConfig(
        **LLAMA, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, vocab_size=49_152, tie_word_embeddings=True,
    ),
    "Llama-3.2-1B": LlamaConfig(
        **LLAMA, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128_256, tie_word_embeddings=True,
    ),
    "GPT-2 XL": GPT2Config(n_layer=48, n_head=25, n_embd=1600),
    "Llama-2-7B": LlamaConfig(
        **LLAMA, hidden_size=4096, intermediate_size=11_008, num_hidden_layers=32, num_attention_heads=32, vocab_size=32_000
    ),
    "Llama-3-70B": LlamaConfig(
        **LLAMA, hidden_size=8192, intermediate_size=28_672, num_hidden_layers=80, num_attention_heads=64,
        num_key_value_heads=8, vocab_size=128_256,
    ),
}  # fmt: skip
CONTEXTS = (1024, 8192, 32_768, 131_072)
RECIPE = RECIPES["pretrained"]
TWO_CORES = ThisMachine(150e9)
"""Two cores of 75 GFLOP/s: the machine on which all measured figures of the documentation were taken."""
DOCUMENT = Path(__file__).parent.parent / "docs/research/2026-11-18-scaling.md"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def gigabytes(size: float) -> str:
    return short(size / GIB)


def power(number: float) -> str:
    return f"{number:.1e}".replace("e+0", "e").replace("e+", "e")


def cases(shapes: dict[str, Shape]) -> Iterator[tuple[str, Shape, int]]:
    """Every model with every context that it can have: GPT-2's positions are learned, there are no more."""
    for name, shape in shapes.items():
        yield from ((name, shape, T) for T in CONTEXTS if shape.context >= T)


def sizes(shapes: dict[str, Shape]) -> str:
    def row(name: str, shape: Shape) -> list[str]:
        features = TranscoderConfig().features_for(shape.layers, shape.width)
        weights = flops.transcoder_weights(shape, features)
        per_layer = 2 * shape.layers * features * shape.width
        heads = f"{shape.layers} x {shape.heads}" + (
            f" / {shape.kv_heads}" if shape.kv_heads != shape.heads else ""
        )
        return [
            name,
            f"{shape.parameters / 1e6:,.0f}M",
            heads,
            f"{shape.width:,}",
            f"{shape.vocabulary:,}",
            f"{shape.edges:,}",
            f"{features:,}",
            f"{weights / 1e9:.2f}B",
            f"{per_layer / 1e9:.2f}B",
        ]

    head = ["", "parameters", "layers x heads / kv", "width", "vocabulary", "edges", "features a layer"]
    return table(
        [*head, "cross-layer transcoder", "per-layer ones"],
        [row(name, shape) for name, shape in shapes.items()],
    )


def fixed_memory(shapes: dict[str, Shape]) -> str:
    """Memory that depends neither on the batch nor on the context, on one device in float32."""
    rows = []
    for name, shape in shapes.items():
        full, lora = (memory.sparsify(shape, Setup(1, 1, rank)) for rank in (None, 16))
        parts = [full.weights, full.gradients, full.optimizer, full.dense]
        together = sum(parts), lora.weights + lora.gradients + lora.optimizer + lora.dense
        rows.append([name, *map(gigabytes, (*parts, *together))])
    head = [
        "GB",
        "weights",
        "gradients",
        "optimizer",
        "dense model",
        "together",
        "with LoRA 16",
    ]
    return table(head, rows)


def a_row(shapes: dict[str, Shape]) -> str:
    """Memory that one sequence of each length adds, in bf16."""
    rows = []
    for name, shape, T in cases(shapes):
        alone = memory.sparsify(shape, Setup(T, 1, bf16=True))
        sharded = memory.sparsify(shape, Setup(T, 1, bf16=True, sharded=True, checkpointing=True))
        parts = (
            alone.activations,
            sharded.activations,
            alone.logits,
            sharded.logits,
            alone.masks,
        )
        rows.append([name, f"{T:,}", *map(gigabytes, parts)])
    head = ["GB", "context", "activations", "with checkpointing", "logits at most", "logits, FSDP", "masks"]
    return table(head, rows)


def cost(shape: Shape, lora: int | None, layout: Layout | None, T: int) -> Work:
    """Work per token on the layout where it fits; with one sequence at once under FSDP if it fits nowhere."""
    return flops.sparsify(shape, layout.setup if layout else Setup(T, 1, lora, sharded=True))


def where(layout: Layout | None) -> str:
    if layout is None:
        return "none"
    return f"{layout.setup.n_gpus}" + (" + ckpt" if layout.setup.checkpointing else "")


def post_training(shapes: dict[str, Shape]) -> str:
    rows = []
    for name, shape, T in cases(shapes):
        layout, adapters = (
            smallest_layout(shape, setup, RECIPE.optimizer.batch_size, 1, H100)
            for setup in (Setup(T, 16), Setup(T, 16, lora=16))
        )
        work, lora = cost(shape, None, layout, T), cost(shape, 16, adapters, T)
        priced = ((H100, work, 2e8), (H100, work, 2e9), (A100, work, 2e8), (H100, lora, 2e8))
        hours = [gpu.seconds(each * tokens) / 3600 for gpu, each, tokens in priced]
        share = f"{H100.row_pass_share(work):.0%}"
        gpus = map(where, (layout, adapters))
        rows.append([name, f"{T:,}", power(work.flops), share, *map(short, hours), *gpus])
    head = ["", "context", "FLOP per token", "row passes", "H100-hours, 200M", "2B", "A100-hours, 200M"]
    return table([*head, "H100-hours, LoRA, 200M", "GPUs", "GPUs, LoRA"], rows)


def obstacles(shapes: dict[str, Shape]) -> str:
    rows = [
        [name, f"{T:,}", obstacle(shape, Setup(T, 16), H100)]
        for name, shape, T in cases(shapes)
        if smallest_layout(shape, Setup(T, 16), RECIPE.optimizer.batch_size, 1, H100) is None
    ]
    return table(["", "context", "obstacle"], rows)


def other_stages(shapes: dict[str, Shape]) -> str:
    rows = []
    for name, shape in shapes.items():
        for stage in plan(shape, machine=TWO_CORES).stages[2:]:
            hours = short(H100.seconds(stage.work) / 3600)
            time = span(TWO_CORES.seconds(stage.work))
            rows.append(
                [
                    name,
                    stage.name,
                    stage.scale,
                    power(stage.work.flops),
                    gigabytes(stage.memory.total),
                    time,
                    hours,
                ]
            )
    return table(["", "stage", "of", "FLOP", "GB", "two cores", "H100-hours"], rows)


def measured(shapes: dict[str, Shape]) -> str:
    """Against the figures of the research log (post-training, circuits, tracing)."""
    pocket, gpt2 = find_shape("pocket"), shapes["GPT-2"]

    def step(shape: Shape, T: int, distilled: bool) -> Work:
        recipe = RECIPE if distilled else replace(RECIPE, distillation=False, paired_baseline=False)
        return flops.sparsify(shape, Setup(T, 1, recipe=recipe, packed=False, sharded=True))  # all logits

    features = TranscoderConfig().features_for(pocket.layers, pocket.width)
    one_core = ThisMachine(TWO_CORES.rate / 2)
    known = [
        ("`pocket`: a step, gated", step(pocket, 128, False) * 2048, 0.342, TWO_CORES),
        ("`pocket`: a step, distilled", step(pocket, 128, True) * 2048, 0.442, TWO_CORES),
        ("`pocket`: the default run, 3.8M tokens", step(pocket, 128, True) * 3.8e6, 3.8e6 / 4300, TWO_CORES),
        ("GPT-2 small: a step of 512 tokens, gated", step(gpt2, 512, False) * 512, 4.381, TWO_CORES),
        ("GPT-2 small: a step, distilled", step(gpt2, 512, True) * 512, 5.592, TWO_CORES),
        (
            "GPT-2 small: all heads, one direction, 16 x 16",
            flops.patch_heads(gpt2, 16, 16) * 0.5,
            28.6,
            TWO_CORES,
        ),
        ("GPT-2 small: EAP-IG, one step", flops.attribute_edges(gpt2, 16, 16, 1), 3.3, TWO_CORES),
        ("GPT-2 small: EAP-IG, five steps", flops.attribute_edges(gpt2, 16, 16), 10.0, TWO_CORES),
        (
            "`pocket`: a transcoder, 0.8M tokens, a busy core",
            flops.train_transcoder(pocket, features, 128, False) * 8e5,
            600.0,
            one_core,
        ),
    ]
    rows = []
    for what, work, seconds, machine in known:
        predicted = machine.seconds(work)
        reached = work.flops / seconds / machine.rate
        rows.append(
            [
                what,
                power(work.flops),
                span(predicted),
                span(seconds),
                f"{predicted / seconds:.2f}x",
                f"{reached:.2f}",
            ]
        )
    return table(["", "FLOP", "predicted", "measured", "predicted / measured", "share of the rate"], rows)


TABLES = {
    "measured": measured,
    "sizes": sizes,
    "post-training": post_training,
    "obstacles": obstacles,
    "fixed memory": fixed_memory,
    "a row": a_row,
    "other stages": other_stages,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/research/2026-11-18-scaling.md"
    )
    shapes = {name: shape_of(config, name) for name, config in CONFIGS.items()}
    results = {name: make(shapes) for name, make in TABLES.items()}
    if not parser.parse_args().write:
        print(f"{CPU_SHARE=}, prompts of {PROMPT_TOKENS} tokens")
        for name, text in results.items():
            print(f"\n{name}\n\n{text}")
        return
    text = DOCUMENT.read_text()
    for name, made in results.items():
        marked = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(
            marked, lambda part, made=made: f"{part[1]}{made}\n{part[2]}", text, flags=re.DOTALL
        )
        if count != 1:
            raise SystemExit(f"docs/research/2026-11-18-scaling.md has {count} places for the table {name!r}")
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
