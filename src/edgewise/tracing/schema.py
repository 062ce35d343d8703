"""What a trace is made of: nodes, links, clusters, QK attributions and interventions, as they are written to trace.json."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Node:
    """A token's embedding, an active feature, a reconstruction error or a logit."""

    id: str
    kind: str
    """token, feature, error or logit"""
    layer: int
    """-1 for a token, the number of layers for a logit."""
    number: int
    """Of the feature in its layer, or of the token in the vocabulary; -1 for an error."""
    position: int
    """Counted from 0."""
    label: str
    influence: float
    """Share of the logits that comes through it."""
    value: float | None = None
    """Activation of a feature, probability of a logit."""
    origin: int | None = None
    """The position of the token to whose embedding most of a feature's input is attributed."""
    cumulative_influence: float | None = None
    """Share of the whole graph's influence that this node and all more influential ones have; None for a logit."""


@dataclass(frozen=True)
class Link:
    """An edge of the attribution graph; its head shares are in `Trace.head_shares`."""

    source: str
    target: str
    weight: float
    flow: float
    """Its share of the logits."""
    straight: float
    """The part of the weight that goes along the residual stream, past all heads."""


@dataclass(frozen=True)
class LinkPaths:
    """The largest paths of a link through one or two heads."""

    link: int
    """Its index among the links."""
    paths: list[tuple[str, float]]
    """L3H1, or L1H0 then L3H1, with the weight that goes this way; largest first."""
    longer: float
    """What goes through three heads or more."""


@dataclass(frozen=True)
class Cluster:
    """Nodes at the same word that respond to the same word (a supernode)."""

    label: str
    """The word it responds to; "large at is" if its features are at another."""
    nodes: list[str]
    first_layer: int | None
    """None: embeddings only."""
    last_layer: int | None
    influence: float

    @property
    def layers(self) -> str:
        if self.first_layer is None:
            return "embedding"
        if self.first_layer == self.last_layer:
            return f"layer {self.first_layer}"
        return f"layers {self.first_layer}-{self.last_layer}"


@dataclass(frozen=True)
class QKAttribution:
    """The score of one attention edge, attributed to pairs of sources: the largest ones."""

    layer: int
    head: int
    query: int
    key: int
    weight: float
    score: float
    rest: float
    """The sum of all pairs that are not listed."""
    pairs: list[tuple[str, str, float]]
    """Source at the query, source at the key, contribution."""


@dataclass(frozen=True)
class Intervention:
    """Change of the log odds when one feature, head or token is ablated: predicted, measured and split."""

    what: str
    """The id of a feature or token, or L5H1."""
    predicted: float
    """By the graph, whose attention patterns and norm denominators are frozen."""
    frozen: float
    """In the model, with attention patterns and norm denominators frozen."""
    actual: float
    """In the model."""
    kind: str = ""
    """feature, head or token"""
    gradient: float = 0.0
    """Predicted by gradient times activation in the replaced model, nothing frozen."""
    replaced: float = 0.0
    """In the replaced model."""
    values: float = 0.0
    """The part of `actual` that goes along values and features."""
    attention: float = 0.0
    """The part by moving attention."""
    norms: float = 0.0
    """The part by norm denominators."""
    errors: float = 0.0
    """The part by what MLPs do beyond their features."""
    moved: list[tuple[str, float]] = field(default_factory=list)
    """The heads whose moving patterns do most, and what each does."""

    @property
    def route(self) -> str:
        """The largest part: values, attention, norms or errors."""
        return max(("values", "attention", "norms", "errors"), key=lambda part: abs(getattr(self, part)))
