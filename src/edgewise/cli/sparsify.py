"""`edgewise sparsify`."""

from edgewise.cli.arguments import DataArgument, Flags, ModelArgument
from edgewise.training.sparsify.config import SparsifyConfig


def sparsify(model: ModelArgument, config: Flags[SparsifyConfig], data: DataArgument = None) -> None:
    """Post-train a dense model until almost no attention edges remain, at the same loss.

    Leaves the sparse twin with summary.json, log.jsonl and run.png in --out. Ctrl-C saves, --resume continues. Without
    --tokens, --minutes or --density a run takes 15 minutes. `edgewise plan` tells beforehand what a run costs.

    Examples:
      edgewise sparsify pocket --minutes 5
      edgewise sparsify gpt2 --data my_text/ --tokens 200M --out runs/gpt2-sparse
      edgewise sparsify gpt2 --data my_text/ --lora 16 --batch-size 8 --grad-accum 2
      accelerate launch -m edgewise sparsify gpt2 --data my_text/ --dtype bfloat16

    Args:
        model: The dense model: an embedded model (pocket), a folder, or a Hugging Face name such as gpt2.
        config: The run.
        data: Text, jsonl or parquet files, folders of them, or the name of a Hugging Face dataset. The embedded models bring
            their own.
    """
    import edgewise  # imports torch and transformers on use: `edgewise --help` need not wait for them

    edgewise.sparsify(model, data, config)
