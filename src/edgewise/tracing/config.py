"""Options of a trace: one dataclass is the API, the command line and its help."""

from dataclasses import dataclass
from pathlib import Path

from edgewise.core.errors import EdgewiseError
from edgewise.core.ranges import Factor, Position, Share, Size, check_fields


@dataclass(frozen=True)
class TraceConfig:
    """A trace of one prediction."""

    prompt: str = 'The opposite of " large " is "'
    """The text whose next token is explained."""
    out: Path = Path("runs/trace")
    """Folder for trace.json, its arrays, the diagram and the graph that other viewers read."""
    logit: str | None = None
    """The token to explain; if not given, the most likely ones that have 95 % of the probability together."""
    node_threshold: Share = 0.8
    """Share of the influence on the logits that the kept features and errors account for."""
    edge_threshold: Share = 0.98
    """Share of the influence through edges between kept nodes that the kept edges account for."""
    share: Share = 0.8
    """Name the fewest heads that carry this share of the attribution through attention."""
    ablations: Size = 100
    """Ablate at most this many features, and as many heads, those of most influence, to validate the trace; every token is
    ablated."""
    data: tuple[str, ...] | None = None
    """Text to search for contexts of the kept features: files, folders or the name of a dataset. The embedded models bring
    their own; without any, a trace has no contexts."""
    key: Position | None = None
    """Token, counted from 1 as in the diagram: also name the heads that carry its attribution to the last token; if not
    given, of the token from which heads carry most, or of the one that the answer is copied from."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.key == 0:
            raise EdgewiseError("`key` counts tokens from 1, so it cannot be 0")

    @property
    def key_position(self) -> int | None:
        """The key's position, counted from 0 as everywhere in Python."""
        return None if self.key is None else self.key - 1


@dataclass(frozen=True)
class InterventionConfig:
    """Heads and features of a prompt, and what they are set to."""

    prompt: str = 'The opposite of " large " is "'
    """The text whose next token is predicted."""
    heads: tuple[str, ...] = ()
    """Heads, such as L4H1,L3H4."""
    features: tuple[str, ...] = ()
    """Features of the transcoder, such as L0/312 (at every token) or L0/312@5 (at the fifth)."""
    scale: Factor = 0.0
    """What they are multiplied by: 0 ablates them, 2 doubles them."""
    patch_from: str | None = None
    """A prompt of as many tokens, from which their values are taken instead."""
    logit: str | None = None
    """The answer whose log odds are measured; the most likely token if not given."""
    top: Size = 8
    """How many of the likeliest next tokens are shown, before and after."""
    out: Path = Path("runs/ablate")
    """Folder for intervention.json."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not (self.heads or self.features):
            raise EdgewiseError("name what to change in `heads` (L4H1,L3H4) or in `features` (L0/312)")
