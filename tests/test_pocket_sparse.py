"""The shipped twin: as sparse as its made.json says, at the loss and with the skills of the dense model."""

import json

import pytest

import edgewise
from edgewise.data import embedded_data
from edgewise.measure.loss import measure
from edgewise.pocket import evaluate, folder

pytestmark = pytest.mark.xdist_group("pocket-sparse")  # on one worker, so that each model is loaded once


@pytest.fixture(scope="module")
def twin():
    return edgewise.load("pocket-sparse")


@pytest.fixture(scope="module")
def made():
    return json.loads((folder("pocket-sparse") / "made.json").read_text())


@pytest.mark.slow
def test_it_is_what_its_folder_says(twin, made):
    shipped = embedded_data("pocket", seed=0)
    assert shipped is not None
    actual = measure(twin, shipped.held_out)
    assert actual.density == pytest.approx(made["density"], rel=0.01)
    assert actual.ce == pytest.approx(made["sparse_ce"], abs=1e-4)
    assert actual.heads_closed == made["heads_closed"]
    assert made["command"].startswith("edgewise sparsify pocket") and made["seconds"] > 0


def test_the_loss_is_kept(made):
    assert made["delta_ce"] <= made["tolerance"] == 0.01


@pytest.mark.slow
def test_no_skill_is_lost(twin):
    dense = evaluate.measure(edgewise.load("pocket"), 200)
    for kind, score in evaluate.measure(twin, 200).items():
        if kind != "loss":
            assert score >= dense[kind] - 0.02, kind


def test_a_twin_is_not_sparsified_again():
    with pytest.raises(edgewise.EdgewiseError, match="already"):
        edgewise.sparsify("pocket-sparse")


def test_the_addition_twin_is_right_on_every_sum():
    twin = edgewise.load("pocket-addition-sparse")
    made = json.loads((folder("pocket-addition-sparse") / "made.json").read_text())
    with edgewise.tap(twin) as activations:
        assert evaluate.measure_addition(twin)["sums"] == 1.0
    assert activations.density == pytest.approx(made["density"], rel=0.01)
