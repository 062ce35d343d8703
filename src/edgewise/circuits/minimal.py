"""Minimal circuits as dataclasses: what a joint search found, and how it stood up to scrutiny."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Explained:
    """Share of the mean effect that a circuit explains, on each split of the prompts. Above 1 where the circuit leaves out
    components that interfere. None for a split that has no prompts."""

    fit: float
    """Prompts of the search."""
    validation: float | None = None
    """Prompts that must be explained too before a component goes."""
    test: float | None = None
    """Held-out prompts, which no choice depends on."""
    selection: float | None = None
    """Prompts that choose the size."""

    @property
    def held_out(self) -> float:
        """On the test prompts; if there are none, on those that the circuit was found with."""
        return next(share for share in (self.test, self.validation, self.fit) if share is not None)


@dataclass(frozen=True)
class SearchPath:
    """The circuits that the search went through, from the largest to the smallest."""

    sizes: list[int] = field(default_factory=list)
    fit: list[float] = field(default_factory=list)
    """Share of the effect explained on the fit prompts."""
    selection: list[float] = field(default_factory=list)
    """The same on the prompts that choose the size; empty where they were not asked."""


@dataclass(frozen=True)
class Starts:
    """The same search from several starts: how unique the circuit is."""

    names: list[str]
    """What each search started from: all components, the prefix, ..."""
    sizes: list[int]
    """Circuit sizes that they ended with."""
    equally_small: int
    """Different circuits of the smallest size."""
    jaccard: float
    """Mean Jaccard index of all pairs of circuits; 1 if they are the same."""


@dataclass(frozen=True)
class Stability:
    """The same search on bootstrap samples of the fit prompts."""

    sizes: list[int]
    """Circuit sizes of the samples."""
    jaccard: float
    """Mean Jaccard index of the circuit and a sample's circuit."""


@dataclass(frozen=True)
class Controls:
    """What circuits explain, on the test prompts, that should explain little."""

    random: float
    """Mean over random circuits of equal size."""
    random_sd: float
    complement: float
    """All other components."""
    shuffled_size: int | None
    """Size of the circuit that the same search finds for shuffled answers; None if there is none."""
    shuffled: float
    """Largest share of the real effect that a search reaches for shuffled answers, on the fit prompts."""


@dataclass(frozen=True)
class MinimalCircuit:
    """The smallest circuit that a joint search found, and the scrutiny that it was put to."""

    components: list[str]
    """Names, those first that the rest can spare least."""
    explained: Explained
    path: SearchPath
    is_minimal: bool
    """No single component can be removed: the rest stays below a split's level."""
    levels: dict[str, float] = field(default_factory=dict)
    """Least share of the effect that the circuit has to explain, of the prompts of each split: the threshold; of the
    prompts of the search more, if smaller circuits that reach the threshold explain too little of those that choose the
    size."""
    beyond: SearchPath = field(default_factory=SearchPath)
    """These smaller circuits."""
    dropped: list[str] = field(default_factory=list)
    """Names of what the search dropped, the last dropped first: with `components`, a ranking."""
    starts: Starts | None = None
    stability: Stability | None = None
    controls: Controls | None = None

    @property
    def size(self) -> int:
        return len(self.components)
