"""`edgewise.compare`: models loaded once, and results that save, draw and show themselves, and meet on one page."""

import pytest
import torch
from runs import save_host, save_text
from traced import random_transcoder

import edgewise
from edgewise.core.errors import EdgewiseError
from edgewise.measure.evaluation import Evaluation
from edgewise.training.transcoder.store import info_of, save_transcoder
from edgewise.training.transcoder.transcoder import Transcoder

PROMPT = "The opposite of large is"
ANALYSES = {
    "circuit": lambda pair, folder: pair.circuit("copy", prompts=4),
    "maps": lambda pair, folder: pair.maps("copy", prompt=PROMPT, heads="L0H0,L1H2"),
    "flow": lambda pair, folder: pair.flow(PROMPT),
    "trace": lambda pair, folder: pair.trace(
        PROMPT, transcoders=[folder / "gpt2-transcoder", folder / "twin-transcoder"], ablations=2
    ),
    "evaluate": lambda pair, folder: pair.evaluate(folder / "text.txt", tokens=500, sinks=True),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dense model, its untrained twin, and a random transcoder of each."""
    folder = tmp_path_factory.mktemp("compare")
    save_text(folder / "text.txt")
    dense = save_host(folder / "gpt2")
    twin = edgewise.gate(edgewise.load(dense), edgewise.GateConfig("relative", b=3.0))
    edgewise.save(twin, folder / "twin", edgewise.load_tokenizer(dense))
    for name in ("gpt2", "twin"):
        model = edgewise.install(edgewise.load(folder / name))
        weights = random_transcoder(2, 32).state_dict()
        transcoder = Transcoder(info_of(model, name, 12), seed=3)
        transcoder.load_state_dict(weights)
        save_transcoder(transcoder, folder / f"{name}-transcoder")
    return folder


@pytest.fixture(scope="module")
def pair(folder):
    return edgewise.compare(folder / "gpt2", folder / "twin", quiet=True)


@pytest.mark.parametrize("name", ANALYSES)
def test_every_result_is_drawn_saved_and_shown(pair, folder, name, tmp_path):
    result = ANALYSES[name](pair, folder)
    assert result.plot()._repr_png_().startswith(b"\x89PNG")
    assert result.save(tmp_path).exists()
    again = type(result).load(tmp_path)
    assert again.table() == result.table() and again.plot()._repr_png_() == result.plot()._repr_png_()
    assert repr(result).startswith(type(result).__name__) and len(repr(result).splitlines()) > 1
    assert result._repr_html_().startswith("<table>")


def test_a_report_holds_all_results_so_far(pair, folder, tmp_path):
    pair = type(pair)(pair.models)
    for name in ("flow", "evaluate"):
        ANALYSES[name](pair, folder)
    page = pair.report(tmp_path)
    assert page.is_file() and f"{len(pair.results)} results" in repr(pair)
    for name, result in pair.results.items():
        assert (tmp_path / name / f"{result.figure_name}.svg").is_file(), name
    again = edgewise.report(tmp_path, tmp_path / "again.html")
    assert again.read_text() == page.read_text() and "<iframe" in again._repr_html_()


def test_nothing_to_report_is_refused(pair, tmp_path):
    with pytest.raises(EdgewiseError, match="nothing to report"):
        type(pair)(pair.models).report(tmp_path)


def test_an_evaluation_is_read_back_with_all_it_measured(pair, folder, tmp_path):
    result = ANALYSES["evaluate"](pair, folder)
    result.save(tmp_path)
    dense, twin = Evaluation.load(tmp_path).values()
    assert list(result) == list(pair.models.names) and dense.against_dense is None
    assert twin.against_dense == list(result.values())[1].against_dense is not None
    for loaded, measured in zip((dense, twin), result.values(), strict=True):
        assert torch.equal(loaded.edges_per_query_per_head, measured.edges_per_query_per_head)
        assert loaded.sinks is not None and torch.equal(loaded.sinks.total, measured.sinks.total)
