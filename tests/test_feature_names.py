"""Names of features, from their contexts."""

from made_traces import make_trace

from edgewise.tracing.feature_names import feature_name


def contexts(*peaks: str) -> dict:
    found = [{"tokens": ["a", peak], "activations": [0.0, 1.0], "peak": 1} for peak in peaks]
    return {"0_12": {"contexts": found, "raised": [(" small", 3.0), (" big", 2.0)], "lowered": []}}


def test_a_feature_is_named_by_what_it_responds_to_and_promotes():
    name = make_trace(3, contexts=contexts(" said", " said", " said", ":")).feature_name(0, 12)
    assert name is not None and name.responds == [("said", 3), (":", 1)] and name.promotes == ["small", "big"]
    assert name.specificity == 0.75 and str(name) == "“said” → “small”"


def test_a_feature_that_responds_to_many_tokens_is_named_by_two():
    name = feature_name(contexts("14", "17", "11", "9"), 0, 12)
    assert name is not None and name.specificity == 0.25 and str(name) == "“14”, “17” → “small”"


def test_without_contexts_there_is_no_name():
    assert feature_name({}, 0, 12) is None and feature_name(contexts(), 0, 12) is None
