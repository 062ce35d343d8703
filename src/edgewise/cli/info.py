"""`edgewise info`."""

from edgewise.cli.arguments import ModelArgument


def info(model: ModelArgument, json: bool = False, accept_edits: bool = False) -> None:
    """Describe a model: architecture, layers x heads, dense or sparse, its gate, parameters, memory.

    Reads the config and the headers of the weight files only, so it is quick for any size.

    Examples:
      edgewise info pocket-sparse
      edgewise info gpt2 --json

    Args:
        model: An embedded model (pocket, pocket-sparse, pocket-addition ...), a folder, or a Hugging Face name such as gpt2.
        json: Print JSON instead of text.
        accept_edits: Take a twin's folder as it is now: write a new manifest, with which its files are compared from now on.
    """
    import edgewise  # imports torch and transformers on use: `edgewise --help` need not wait for them

    if accept_edits:
        from edgewise.models.accept import accept_edits_of  # imports torch

        accept_edits_of(model)
    described = edgewise.info(model)
    print(described.to_json() if json else described)
