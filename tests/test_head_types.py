"""Head types: every type on maps made by hand, at every length, dense and sparse; statistics that can be counted."""

import numpy as np
import pytest
from hand_made_maps import KINDS, noise, pattern, words
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgewise.maps.head_types import TYPES, HeadType, answer_positions, head_type
from edgewise.maps.statistics import head_statistics, summarise

LENGTHS = [8, 12, 16, 64, 256]


def sparse(w: np.ndarray, seed: int) -> np.ndarray:
    """A map as of a sparse twin: weak edges closed, a third of the queries empty, the others of less weight."""
    rng = np.random.default_rng(seed)
    open_queries = np.ones(len(w))
    open_queries[1 + rng.permutation(len(w) - 1)[: len(w) // 3]] = 0
    return np.where(w < 0.06, 0, w) * (open_queries * rng.uniform(0.6, 1, len(w)))[:, None]


def components(type: HeadType) -> set[str]:
    return {str(component) for component in type.components or (type,)}


# ------------------------------------------------------------------------------------------------------------- types


@pytest.mark.parametrize("t", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_is_found_at_every_length_clean_and_noisy(kind, t):
    # a text that repeats itself in all of these, so that induction is always possible
    clean = pattern(kind, t, words(t))
    if kind == "3 back" and t == 8:
        return  # there, that is where an induction head looks
    assert str(head_type(clean, words(t))) == kind
    assert head_type(clean, words(t)).score == pytest.approx(1, abs=0.02)
    for seed in range(4):
        noisy = 0.85 * clean + 0.15 * noise(t, seed)
        result = head_type(noisy, words(t))
        assert str(result) == kind
        assert kind == "diffuse" or result.score == pytest.approx(0.85, abs=0.12)


@pytest.mark.parametrize("t", [24, 64, 256])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "diffuse"])
def test_queries_of_a_twin_may_be_weak_or_empty(kind, t):
    for seed in range(4):
        w = sparse(0.9 * pattern(kind, t, words(t)) + 0.1 * noise(t, seed), seed)
        assert (w.sum(1) == 0).sum() == t // 3
        assert str(head_type(w, words(t))) == kind


@pytest.mark.parametrize("t", [16, 64, 256])
@pytest.mark.parametrize(("first", "second"), [(a, b) for i, a in enumerate(KINDS) for b in KINDS[i + 1 :]])
def test_mixtures_are_hybrids_of_their_components_and_a_small_one_is_ignored(first, second, t):
    a, b = (pattern(kind, t, words(t)) for kind in (first, second))
    for share in (0.5, 0.4):
        result = head_type(0.95 * ((1 - share) * a + share * b) + 0.05 * noise(t, 0), words(t))
        is_diagonal = {first, second} <= {"current-token", "previous-token", "3 back"}
        assert result.name == ("multiple-offsets" if is_diagonal else "hybrid")
        assert components(result) == {first, second}
        assert result.components[0].score >= result.components[1].score >= 0.2
    assert str(head_type(0.82 * a + 0.18 * b, words(t))) == first
    assert str(head_type(0.18 * a + 0.82 * b, words(t))) == second


def test_three_components_and_components_one_after_the_other():
    w = sum(pattern(kind, 48, words(48)) for kind in ("current-token", "3 back", "first-token")) / 3
    assert components(head_type(w)) == {"current-token", "3 back", "first-token"}
    # current token until the text repeats itself, then the same token eight back: both lines are seen
    w = pattern("current-token", 16, words(16))
    w[8:] = np.eye(16, k=-8)[8:]
    assert components(head_type(w, words(16))) == {"current-token", "duplicate-token"}
    # two diagonals that no tokens explain are two offsets
    assert head_type(w).name == "multiple-offsets" and str(head_type(w)) == "offsets 0, 8"


def test_a_score_does_not_depend_on_the_length():
    for kind in KINDS:
        scores = []
        for t in (16, 64, 256):
            w = 0.8 * pattern(kind, t, words(t)) + 0.2 * noise(t, t)
            scores.append(head_type(w, words(t)).score)
        assert max(scores) - min(scores) < 0.12, kind


def test_offsets_are_named():
    for offset in (0, 1, 2, 5, 9):
        result = head_type(pattern(f"{offset} back", 32, [*range(32)]))
        assert result.offset == (offset or None)
        assert result.name == {0: "current-token", 1: "previous-token"}.get(offset, "fixed-offset")


def test_induction_needs_repeated_tokens_that_explain_the_map():
    t, tokens = 15, [*range(8), *range(7)]
    w = pattern("induction", t, tokens)
    assert str(head_type(w, tokens)) == "induction"
    assert str(head_type(w, [f"word {i}" for i in tokens])) == "induction"
    assert str(head_type(w)) == str(head_type(w, [*range(t)])) == "7 back"
    # near misses: the token itself, and the one after the next
    assert str(head_type(pattern("8 back", t, tokens), tokens)) == "duplicate-token"
    assert str(head_type(pattern("6 back", t, tokens), tokens)) == "6 back"
    # seven back also where nothing repeats: no token explains it
    longer = [*range(100, 120), *tokens]
    assert str(head_type(pattern("7 back", 35, longer), longer)) == "7 back"
    # previous token, in a text where that is sometimes what came after
    text = [0, 1, 0, 2, 3, 2, 4, 5, 4, 6, 7, 6, 8, 9, 10, 11]
    assert str(head_type(pattern("previous-token", 16, text), text)) == "previous-token"
    assert str(head_type(pattern("previous-token", 16, [0] * 16), [0] * 16)) == "previous-token"
    # the earliest occurrence, and not the latest
    thrice = [*range(8)] * 3
    w = np.zeros((24, 24))
    for i in range(24):
        w[i, i % 8 + 1 if i >= 8 else 0] = 1
    assert str(head_type(w, thrice)) == "induction"


def test_a_name_mover_attends_from_the_last_token_to_the_answer_of_a_task_that_asks_for_a_name():
    prompt, t = ["When", " Mary", " and", " John", " met", ",", " John", " gave", " it", " to"], 10
    assert answer_positions("ioi", prompt, ["Mary"]) == [1]
    assert answer_positions("copy", prompt, ["Mary"]) == answer_positions(None, prompt, ["Mary"]) == []
    sink = np.zeros((t, t))
    sink[:, 0] = 1
    mover = sink.copy()
    mover[-1, :2] = 0.2, 0.8
    assert str(head_type(mover, prompt, [1])) == "name-mover" and head_type(
        mover, prompt, [1]
    ).score == pytest.approx(0.8)
    assert str(head_type(mover, prompt)) == str(head_type(sink, prompt, [1])) == "first-token"
    only = np.zeros((t, t))
    only[-1, 1] = 0.9  # all other queries of a twin attend to nothing
    assert str(head_type(only, prompt, [1])) == "name-mover" and str(head_type(only, prompt)) == "near-empty"


@pytest.mark.parametrize("t", [24, 64, 256])
def test_sharp_weight_along_no_line_is_irregular(t):
    rng = np.random.default_rng(t)
    for _ in range(4):
        w = np.zeros((t, t))
        for i in range(t):
            w[i, rng.integers(0, i + 1)] = 1
        assert head_type(w).name == "irregular"
        assert head_type(0.9 * w + 0.1 * noise(t, 0)).name == "irregular"


def test_types_that_are_easily_confused():
    t = 32
    one = pattern("current-token", t, words(t))
    faint = np.zeros((t, t))
    assert head_type(faint).name == "near-empty"
    faint[[9, 20], 0] = 0.4
    assert head_type(faint).name == "near-empty"
    faint[0, 0] = 1  # the first query sees nothing else
    assert head_type(faint).name == "near-empty"
    assert head_type(0.08 * one).name == "near-empty"
    assert head_type(0.2 * one).name == "current-token"
    band = sum(np.eye(t, k=-k) for k in range(12)) / 12
    assert head_type(band).name == "diffuse"
    wobbly = np.zeros((t, t))  # one to four back, in turns
    wobbly[np.arange(t), np.maximum(0, np.arange(t) - 1 - np.arange(t) % 4)] = 1
    assert head_type(wobbly).name in ("irregular", "hybrid", "multiple-offsets")
    stripe = np.zeros((t, t))  # a single stripe is one
    stripe[:6, 0], stripe[6:, 5] = 1, 1
    assert head_type(stripe).name == "vertical-stripes"


@pytest.mark.parametrize("t", [1, 2, 3])
def test_a_map_too_short_for_a_line_is_classified_without_failing(t):
    assert head_type(np.tri(t)).name in ("irregular", "near-empty")


@settings(max_examples=60, deadline=None)
@given(
    st.integers(4, 20).flatmap(
        lambda t: st.tuples(
            arrays(np.float32, (t, t), elements=st.floats(0, 1, width=32)),
            st.lists(st.integers(0, 5), min_size=t, max_size=t),
        )
    )
)
def test_any_map_has_one_type_and_half_its_weight_changes_nothing(case):
    w, tokens = case
    w = np.tril(w) / np.maximum(np.tril(w).sum(1, keepdims=True), 1)
    result = head_type(w, tokens)
    assert result.name in TYPES and -1e-9 <= result.score <= 1 + 1e-6
    assert (result.name in ("hybrid", "multiple-offsets")) == (len(result.components) >= 2)
    assert (result.name in ("previous-token", "fixed-offset")) == (result.offset is not None)
    half = head_type(0.5 * w, tokens)
    assert half.name in (result.name, "near-empty")


# -------------------------------------------------------------------------------------------------------- statistics


def test_statistics_of_a_map_that_can_be_counted():
    w = np.array([[1, 0, 0, 0], [0.25, 0.75, 0, 0], [0, 0.6, 0.2, 0], [0, 0, 0, 0.3]], dtype=np.float32)
    statistics = head_statistics(w)
    assert statistics.weight == pytest.approx(2.1 / 3)
    assert statistics.peak == pytest.approx(0.75)
    assert statistics.first_token == pytest.approx(0.25 / 3)
    assert statistics.diagonal == pytest.approx(1.25 / 3)
    assert statistics.diagonal_dominant
    assert (statistics.strong_off_diagonal, statistics.open_edges) == (1, 6)
    p, q = np.array([0.25, 0.75]), np.array([0.75, 0.25])
    assert statistics.entropy == pytest.approx(-(p * np.log(p) + q * np.log(q)).sum() / 3)
    assert head_statistics(np.zeros((4, 4))).entropy == 0
    summary = summarise([statistics, head_statistics(np.zeros((4, 4)))])
    assert summary["heads"] == 2 and summary["open_edges"] == 3 and summary["diagonal_dominant"] == 0.5
    assert summarise([])["peak"] is None
