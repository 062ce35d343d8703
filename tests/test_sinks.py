"""What rests on first tokens, against transformers' own attention weights."""

import pytest
import torch
from runs import CONTEXT, command, save_host, save_text
from transformers import AutoModelForCausalLM

import edgewise
from edgewise.data import Batch
from edgewise.measure.sinks import measure_sinks


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    workspace = tmp_path_factory.mktemp("workspace")
    for kind in ("gpt2", "llama"):
        save_host(workspace / kind, kind)
    save_text(workspace / "text.txt")
    return workspace


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_of_a_dense_model_they_are_what_transformers_gives(workspace, kind):
    ids = torch.randint(5, 60, (6, CONTEXT))
    host = AutoModelForCausalLM.from_pretrained(workspace / kind, attn_implementation="eager")
    with torch.no_grad():
        weights = torch.stack(host(ids, output_attentions=True).attentions)  # [layers, rows, heads, t, t]
    actual = measure_sinks(edgewise.load(workspace / kind), Batch(ids, ids, None))
    torch.testing.assert_close(actual.first, weights[..., 1:, 0].mean((1, 3)), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(actual.total, torch.ones_like(actual.total))
    assert actual.heads == int((actual.first > 0.5).sum())


def test_each_document_has_its_own_first_token(workspace):
    """Rows packed with several documents give what the documents give by themselves."""
    model, ids = edgewise.load(workspace / "gpt2"), torch.randint(5, 60, (3, 12))
    lengths = ((12,), (5, 7), (1, 3, 8))
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    batch = Batch(ids, ids, positions)
    expected, queries = torch.zeros_like(measure_sinks(model, batch).first), 0
    for row, documents in zip(ids, lengths, strict=True):
        for document in row.split(documents):
            if len(document) > 1:
                alone = measure_sinks(model, Batch(document[None], document[None], None))
                expected += alone.first * (len(document) - 1)
                queries += len(document) - 1
    torch.testing.assert_close(measure_sinks(model, batch).first, expected / queries, rtol=1e-4, atol=1e-6)


def test_a_closed_twin_attends_to_nothing(workspace):
    twin = edgewise.gate(edgewise.load(workspace / "gpt2"), edgewise.GateConfig("relative", b=-1.0))
    ids = torch.randint(5, 60, (2, CONTEXT))
    assert measure_sinks(twin, Batch(ids, ids, None)).total.max() == 0


def test_a_twin_without_sinks_has_none(workspace):
    """In rows packed with several documents, too; what it attends to otherwise stays."""
    ids, positions = torch.randint(5, 60, (3, 12)), torch.cat([torch.arange(5), torch.arange(7)]).repeat(3, 1)
    batch = Batch(ids, ids, positions)
    kept, closed = (
        measure_sinks(edgewise.gate(edgewise.load(workspace / "llama"), gate), batch)
        for gate in (edgewise.GateConfig(b=50.0), edgewise.GateConfig(b=50.0, sinks=False))
    )
    assert kept.first.min() > 0 and closed.first.max() == 0
    torch.testing.assert_close(
        closed.total[0], (kept.total - kept.first)[0]
    )  # later layers read something else


def test_a_run_may_close_sinks(workspace, tmp_path):
    command("sparsify", workspace / "llama", "--data", workspace / "text.txt", "--tokens", 6 * 4 * CONTEXT,
            "--batch-size", 4, "--no-sinks", "--out", tmp_path / "twin")  # fmt: skip
    twin = edgewise.load(tmp_path / "twin")
    config = edgewise.gate_config(twin)
    assert config is not None and not config.sinks
    ids = torch.randint(5, 60, (2, CONTEXT))
    assert measure_sinks(twin, Batch(ids, ids, None)).first.max() == 0
    assert "never to a text's first token" in str(edgewise.info(tmp_path / "twin"))


def test_rows_of_first_tokens_only_are_refused(workspace):
    ids = torch.zeros(2, 1, dtype=torch.long)
    with pytest.raises(edgewise.EdgewiseError, match="no token after a first one"):
        measure_sinks(edgewise.load(workspace / "gpt2"), Batch(ids, ids, None))


def test_the_command_prints_and_writes_them(workspace, tmp_path, capsys):
    code, out, _ = command(
        "eval",
        workspace / "gpt2",
        "--data",
        workspace / "text.txt",
        "--sinks",
        "--out",
        tmp_path / "eval.json",
    )
    assert code == 0 and "first token" in out
    assert '"sink_heads": ' in (tmp_path / "eval.json").read_text()
