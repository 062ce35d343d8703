"""Traces: of the pocket twin, saved and loaded, exported for other viewers; what is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from neuronpedia import misfits
from rich.console import Console
from traced import random_transcoder

import edgewise
from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.tracing.config import TraceConfig
from edgewise.tracing.export import LIST, graph_json, write_graph
from edgewise.tracing.graph_file import read_graph
from edgewise.tracing.result import Trace
from edgewise.tracing.schema import Link, Node
from edgewise.tracing.trace import trace
from edgewise.tracing.traces import Traces


@pytest.fixture(scope="module")
def pocket_trace() -> Trace:
    transcoder = random_transcoder(6, 128, 64)
    with torch.no_grad():
        transcoder.output_scale.fill_(0.3)
    return trace("pocket-sparse", TraceConfig(node_threshold=0.95), transcoders=transcoder)[0]


def test_a_trace_of_the_pocket_twin(pocket_trace: Trace):
    assert pocket_trace.logits[0][0].strip() == "small"
    assert pocket_trace.kind == "sparse"
    assert pocket_trace.metrics["closure"] < 1e-4
    assert pocket_trace.metrics["head_share_closure"] < 1e-5
    assert pocket_trace.tokens[pocket_trace.main_key] == "large"
    heads = pocket_trace.heads_at(0.8)
    parts = [part for _, _, part in heads]
    assert parts == sorted(parts, reverse=True)
    assert sum(parts) >= 0.8 > sum(parts[:-1])
    carrying = pocket_trace.heads_at(0.8, key=4, query=7)
    assert all(pocket_trace.maps[layer, head, 7, 4] > 0 for layer, head, _ in carrying)
    assert pocket_trace.head_flow().sum() == pytest.approx(
        sum(pocket_trace.head_flow(query=q).sum() for q in range(8)), rel=1e-5
    )
    assert sum(pocket_trace.origins) == pytest.approx(1.0, abs=1e-4)
    assert pocket_trace.qk_attributions
    for qk in pocket_trace.qk_attributions:
        assert qk.rest + sum(value for _, _, value in qk.pairs) == pytest.approx(qk.score, abs=1e-4)
        assert pocket_trace.maps[qk.layer, qk.head, qk.query, qk.key] == pytest.approx(qk.weight)


def test_a_trace_is_saved_and_loaded(pocket_trace: Trace, tmp_path: Path):
    pocket_trace.save(tmp_path)
    again = Trace.load(tmp_path)
    assert again.nodes == pocket_trace.nodes
    assert again.links == pocket_trace.links
    assert again.clusters == pocket_trace.clusters
    assert np.array_equal(again.cells, pocket_trace.cells)
    assert again.heads_at(0.8) == pocket_trace.heads_at(0.8)
    (tmp_path / "trace.json").write_text("{")
    with pytest.raises(EdgewiseError, match="holds no trace"):
        Trace.load(tmp_path)


@pytest.mark.parametrize("kinds", [("sparse",), ("dense", "sparse"), ("dense", "dense")])
def test_traces_are_saved_with_their_graphs_and_loaded(pocket_trace: Trace, kinds, tmp_path: Path):
    traces = Traces(tuple(replace(pocket_trace, kind=kind, model=f"{i}") for i, kind in enumerate(kinds)))
    traces.save(tmp_path)
    again = Traces.load(tmp_path)
    assert [trace.model for trace in again] == [trace.model for trace in traces]
    assert again.table() == traces.table() and len(again.table()[0]) == 1 + len(kinds)
    assert len(json.loads((tmp_path / "graphs" / LIST).read_text())["graphs"]) == len(kinds)
    assert "heads at 80%" in repr(again) and "<table>" in again._repr_html_()


NODE_FIELDS = {
    "node_id": str,
    "feature": int,
    "layer": str,
    "ctx_idx": int,
    "feature_type": str,
    "jsNodeId": str,
    "clerp": str,
}


def check_schema(content: dict) -> None:
    """Fields that readers of the format rely on."""
    assert {"metadata", "qParams", "nodes", "links"} <= content.keys()
    metadata = content["metadata"]
    assert {"slug": str, "scan": str, "prompt": str}.items() <= {
        k: type(v) for k, v in metadata.items()
    }.items()
    assert metadata["schema_version"] == 1
    assert all(isinstance(token, str) for token in metadata["prompt_tokens"])
    assert {"node_threshold", "edge_threshold"} <= metadata["pruning_settings"].keys()
    assert content["qParams"]["linkType"] == "both"
    ids = [node["node_id"] for node in content["nodes"]]
    assert len(ids) == len(set(ids))
    for node in content["nodes"]:
        for field, kind in NODE_FIELDS.items():
            assert isinstance(node[field], kind), field
        assert 0 <= node["ctx_idx"] < len(metadata["prompt_tokens"])
        if node["feature_type"] == "cross layer transcoder":
            layer, number, position = map(int, node["node_id"].split("_"))
            assert node["feature"] == (layer + number) * (layer + number + 1) // 2 + number
            assert (node["layer"], node["ctx_idx"]) == (str(layer), position)
        elif node["feature_type"] == "embedding":
            assert node["layer"] == "E" and node["node_id"].startswith("E_")
        elif node["feature_type"] == "logit":
            assert f"(p={node['token_prob']:.3f})" in node["clerp"]
        else:
            assert node["feature_type"] == "mlp reconstruction error"
            assert node["node_id"] == f"{node['layer']}_-1_{node['ctx_idx']}"
            assert node["feature"] == -1
    for link in content["links"]:
        assert link["source"] in ids and link["target"] in ids
        assert isinstance(link["weight"], float)
    for name, *members in content["qParams"]["supernodes"]:
        assert isinstance(name, str) and set(members) <= set(ids)
    assert set(content["qParams"]["pinnedIds"]) <= set(ids)


def test_the_exported_graph_fits_neuronpedias_schema(pocket_trace: Trace, tmp_path: Path):
    content = json.loads(write_graph(pocket_trace, tmp_path).read_text())
    assert list(misfits(content)) == []
    del content["metadata"]["scan"]
    content["nodes"][0]["ctx_idx"], content["links"][0]["weight"] = 0.5, None
    assert list(misfits(content)) == ["/metadata/scan", "/nodes/ctx_idx", "/links/weight"]


def test_the_exported_graph(pocket_trace: Trace, tmp_path: Path):
    path = write_graph(pocket_trace, tmp_path)
    content = json.loads(path.read_text())
    check_schema(content)
    write_graph(pocket_trace, tmp_path)  # again: still one in the list
    listed = json.loads((tmp_path / LIST).read_text())["graphs"]
    assert listed == [content["metadata"]]
    assert path.stem == content["metadata"]["slug"]
    carried = [link for link in content["links"] if link["heads"]]
    assert carried
    for link in carried:
        total = link["straight"] + sum(weight for _, weight in link["heads"])
        assert total == pytest.approx(link["weight"], abs=0.06 * abs(link["weight"]) + 1e-3)


def old_names(content: dict) -> dict:
    """A graph as circuit-tracer wrote it until July 2026: errors are called 0_{layer}_{position}."""
    content = json.loads(json.dumps(content))
    old = {
        node["node_id"]: f"0_{node['layer']}_{node['ctx_idx']}"
        for node in content["nodes"]
        if node["feature_type"] == "mlp reconstruction error"
    }
    assert old
    for node in content["nodes"]:
        node["node_id"] = old.get(node["node_id"], node["node_id"])
    for link in content["links"]:
        link.update({end: old.get(link[end], link[end]) for end in ("source", "target")})
    return content


def with_a_feature_and_an_error(trace: Trace, feature_layer: int) -> Trace:
    """Two sources of the logit: feature 3 of a layer and the error of layer 3, both at position 2."""
    feature = Node(f"{feature_layer}_3_2", "feature", feature_layer, 3, 2, "of", 0.1, 1.0, 2)
    error, logit = Node("error_3_2", "error", 3, -1, 2, "of", 0.1), trace.nodes[-1]
    links = [Link(node.id, logit.id, weight, 0.1, 0.0) for node, weight in ((feature, 0.5), (error, -0.25))]
    return replace(
        trace, nodes=[feature, error, logit], links=links, clusters=[], head_shares=trace.head_shares[:2]
    )


def test_a_graph_is_read_with_error_nodes_named_as_now_or_as_before(pocket_trace: Trace, tmp_path: Path):
    for traced in (with_a_feature_and_an_error(pocket_trace, 1), pocket_trace):
        content = graph_json(traced)
        (tmp_path / "new.json").write_text(json.dumps(content))
        (tmp_path / "old.json").write_text(json.dumps(old_names(content)))
        graph = read_graph(tmp_path / "new.json")
        assert read_graph(tmp_path / "old.json") == graph
        assert [node.id for node in graph.nodes] == [node["node_id"] for node in content["nodes"]]
        assert [(node.kind, node.number, node.position) for node in graph.nodes] == [
            (node.kind, node.number, node.position) for node in traced.nodes
        ]
        assert [link.weight for link in graph.links] == [link["weight"] for link in content["links"]]
        assert graph.tokens == traced.tokens and graph.model == traced.model


def test_an_old_name_that_a_feature_has_too_is_refused(pocket_trace: Trace, tmp_path: Path):
    content = graph_json(with_a_feature_and_an_error(pocket_trace, 0))
    (tmp_path / "new.json").write_text(json.dumps(content))
    assert len(read_graph(tmp_path / "new.json").nodes) == 3
    (tmp_path / "old.json").write_text(json.dumps(old_names(content)))
    with pytest.raises(EdgewiseError, match="two nodes are called 0_3_2"):
        read_graph(tmp_path / "old.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["links"].append({"source": "9_9_9", "target": "9_9_9", "weight": 0.1}), "leads to 9_9_9"),
        (lambda content: content["nodes"][0].update(ctx_idx="first"), r"nodes\[0\].ctx_idx"),
        (lambda content: content["nodes"].append({**content["nodes"][0], "node_id": "name"}), "'name' is no id"),
        (lambda content: content.pop("metadata"), "that circuit-tracer, Neuronpedia or edgewise wrote"),
    ],
)  # fmt: skip
def test_a_damaged_graph_is_one_line(pocket_trace: Trace, tmp_path: Path, change, message):
    content = graph_json(pocket_trace)
    change(content)
    (tmp_path / "graph.json").write_text(json.dumps(content))
    with pytest.raises(EdgewiseError, match=message):
        read_graph(tmp_path / "graph.json")


def test_viewers_thresholds_keep_the_most_influential_nodes(pocket_trace: Trace):
    """Viewers keep the nodes whose influence is at most a threshold: a running share, the most influential nodes first."""
    own = {node.id: node.influence for node in pocket_trace.nodes if node.kind != "logit"}
    exported = [node["influence"] for node in graph_json(pocket_trace)["nodes"]]
    cumulative = dict(zip((node.id for node in pocket_trace.nodes), exported, strict=True))
    ordered = sorted(own, key=lambda node: -own[node])
    shares = [cumulative[node] for node in ordered]
    assert shares == sorted(shares) and 0 < shares[0] < shares[-1] <= 1
    # the first has its own share, and each step is the next node's: the kept ones are the graph's most influential
    total = own[ordered[0]] / shares[0]
    assert shares[1] - shares[0] == pytest.approx(own[ordered[1]] / total, rel=1e-5)
    assert all(cumulative[node.id] is None for node in pocket_trace.nodes if node.kind == "logit")


def test_members_of_supernodes_are_pinned(pocket_trace: Trace):
    parameters = graph_json(pocket_trace)["qParams"]
    members = {node for _, *nodes in parameters["supernodes"] for node in nodes}
    assert members and members < set(parameters["pinnedIds"])


def test_supernodes_of_the_report_replace_those_of_the_clusters(pocket_trace: Trace, tmp_path: Path):
    first, second, *_ = [node["node_id"] for node in graph_json(pocket_trace)["nodes"]]
    file = tmp_path / "supernodes.json"
    file.write_text(json.dumps({"qParams": {"pinnedIds": [first, second], "supernodes": [["sizes", first]]}}))
    written = json.loads(write_graph(pocket_trace, tmp_path, file).read_text())["qParams"]
    assert written["pinnedIds"] == [first, second] and written["supernodes"] == [["sizes", first]]
    assert written["linkType"] == "both"
    file.write_text(json.dumps({"qParams": {"pinnedIds": ["0_99999_0"], "supernodes": []}}))
    with pytest.raises(EdgewiseError, match="0_99999_0, which is no node of the trace"):
        write_graph(pocket_trace, tmp_path, file)


def test_token_texts_are_exported_unchanged(pocket_trace: Trace, tmp_path: Path):
    odd = ["\n", "\t", "</script>", '"', "\\", "🙂", "שלום", "\u202e" + "x" * 200]
    content = json.loads(write_graph(replace(pocket_trace, tokens=odd), tmp_path).read_text())
    assert content["metadata"]["prompt_tokens"] == odd


def test_an_error_and_a_feature_do_not_share_an_id(pocket_trace: Trace):
    shared = [
        Node("0_3_2", "feature", 0, 3, 2, "of", 0.1, 1.0, 2),
        Node("error_3_2", "error", 3, -1, 2, "of", 0.1),
        pocket_trace.nodes[-1],
    ]
    made = replace(
        pocket_trace, nodes=shared, links=[], clusters=[], head_shares=pocket_trace.head_shares[:0]
    )
    check_schema(graph_json(made))


# ----------------------------------------------------------------------------------------------------------------- bad input


def test_bad_input_is_refused(pocket_trace: Trace, tmp_path: Path):
    transcoder = random_transcoder(6, 128, 8)
    with pytest.raises(EdgewiseError, match="not one token of pocket's vocabulary"):
        trace("pocket", TraceConfig(logit="antidisestablishment"), transcoders=transcoder)
    with pytest.raises(EdgewiseError, match="tokens; give pocket one of 1 to 128"):
        trace("pocket", TraceConfig(prompt="the " * 200), transcoders=transcoder)
    with pytest.raises(EdgewiseError, match=r"does not know .*xylophone"):
        trace("pocket", TraceConfig(prompt='The opposite of " xylophone " is "'), transcoders=transcoder)
    with torch.no_grad():
        transcoder.encoder_bias.fill_(-1e3)
    with pytest.raises(EdgewiseError, match="no feature of the transcoder is active"):
        trace("pocket", transcoders=transcoder)
    with pytest.raises(EdgewiseError, match="there is no key 99"):
        pocket_trace.heads_at(0.8, key=99)
    with pytest.raises(EdgewiseError, match="share must be"):
        pocket_trace.heads_at(1.5)
    with pytest.raises(EdgewiseError, match="`node_threshold` must be above 0"):
        TraceConfig(node_threshold=0.0)
    with pytest.raises(EdgewiseError, match="counts tokens from 1"):
        TraceConfig(key=0)
    with pytest.raises(
        EdgewiseError, match="`key` 8 is not before the last token, which is number 8; give 1 to 7"
    ):
        trace("pocket", TraceConfig(key=8), transcoders=transcoder)
    with pytest.raises(EdgewiseError, match="`transcoders` must be as many as the models, 2, not 1"):
        trace(["pocket", "pocket-sparse"], transcoders=transcoder)
    with pytest.raises(EdgewiseError, match="give the transcoder"):
        trace("pocket-addition", TraceConfig(prompt="53+21="))


def test_a_model_in_half_precision_is_traced_and_stays_as_it_is():
    model, tokenizer = edgewise.load("pocket").bfloat16(), edgewise.load_tokenizer("pocket")
    (traced,) = trace(model, transcoders=random_transcoder(6, 128, 8), tokenizer=tokenizer)
    assert traced.metrics["closure"] < 1e-4
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_a_trace_that_does_not_fit_in_memory_is_refused(capsys):
    edgewise.trace("pocket", display=Display())
    printed = capsys.readouterr().err
    assert re.search(r"\d+ active features on 8 tokens; memory about \d+\.\d GB in all", printed)
    assert re.search(r"\d+ links among \d+ nodes, split over heads; memory about \d+\.\d GB in all", printed)
    with pytest.raises(
        EdgewiseError, match=r"active features on 8 tokens, which would .* so that fewer are active"
    ):
        edgewise.trace("pocket", memory_limit=1 << 20)


def test_a_quiet_display_does_not_capture_standard_output(capsys):
    """Not even on a terminal, where a progress bar redirects it."""
    display = Display(quiet=True)
    display.console = Console(stderr=True, quiet=True, force_terminal=True)
    with display.bar("at work", 2) as advance:
        print("one")
        advance(2)
    with display.status("at work"):
        print("two")
    assert capsys.readouterr().out == "one\ntwo\n"
