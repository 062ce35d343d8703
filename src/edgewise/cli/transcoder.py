"""`edgewise transcoder`."""

from edgewise.cli.arguments import DataArgument, Flags, ModelArgument
from edgewise.training.transcoder.config import TranscoderConfig


def transcoder(model: ModelArgument, config: Flags[TranscoderConfig], data: DataArgument = None) -> None:
    """Train a cross-layer transcoder: sparse features that reconstruct what a model's MLPs write.

    Leaves the transcoder with summary.json and log.jsonl in --out. Ctrl-C saves, --resume continues.

    Examples:
      edgewise transcoder pocket-sparse --minutes 10 --out runs/pocket-sparse-transcoder
      edgewise transcoder gpt2 --data my_text/ --tokens 50M

    Args:
        model: A dense model or a sparse twin: an embedded model (pocket, pocket-sparse), a folder, or a Hugging Face name.
        config: The run.
        data: Text, jsonl or parquet files, folders of them, or the name of a Hugging Face dataset. The embedded models bring
            their own.
    """
    import edgewise  # imports torch and transformers on use: `edgewise --help` need not wait for them

    edgewise.train_transcoder(model, data, config)
