"""The benchmarks' page: what it says with made-up figures, and that all of it runs at tiny sizes without any rival."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hosts import CONTEXT, host
from runs import save_host, save_text

import edgewise

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


def test_a_row_that_stops_early_is_filled_up():
    from page import table  # pyright: ignore

    rows = [["edgewise", "1.0 s", ""], ["a rival", "not installed"]]
    assert table(["", "time", "ratio"], rows) == (
        "|  | time | ratio |\n| --- | ---: | ---: |\n| edgewise | 1.0 s |  |\n| a rival | not installed |  |"
    )


def test_the_page_begins_with_where_it_comes_from_and_names_no_host():
    from page import Section, machine, page  # pyright: ignore

    text = page(
        f"Written by `make bench`.\n{machine()}.",
        [Section("One", "\nWhat it is.\n", ["a", "b"], [["x", "1"]])],
    )
    first = text.splitlines()[:4]
    assert first[0] == "# Benchmarks" and "make bench" in first[2]
    assert " cores, " in first[3] and "torch " in first[3]
    assert "## One\n\nWhat it is.\n\n| a | b |\n| --- | ---: |\n| x | 1 |\n" in text
    assert socket.gethostname() not in text.split() and str(Path.home()) not in text


def test_a_section_is_renewed_alone():
    from page import Section, page, renewed  # pyright: ignore

    one, two = (Section(name, "What it is.", ["a", "b"], [[name, "1"]]) for name in ("One", "Two"))
    written = page("How.", [one, two])
    text = renewed(written, "Measured again.", [one._replace(rows=[["One", "2"]])])
    assert text.replace("\n\nMeasured again.", "").replace("| One | 2 |", "| One | 1 |") == written
    assert text.count("Measured again.") == 1 and "| One | 2 |" in text and "| Two | 1 |" in text


def test_a_rival_that_is_missing_or_fails_is_named_so(tmp_path, capsys):
    from peers import RIVALS, Environment  # pyright: ignore

    assert Environment(str(tmp_path / "python")).ask(RIVALS[0], "peer_nnsight.py", "") == "not installed"
    here = Environment(sys.executable)
    assert here.ask(RIVALS[0], "peer_transformer_lens.py", "") == "not installed"
    here.versions[RIVALS[0]] = "4.3.0"  # says that it is there and is not
    assert here.ask(RIVALS[0], "peer_transformer_lens.py", "") == "failed"
    assert "No module named 'transformer_lens'" in capsys.readouterr().out


def test_work_is_charged_for_its_peak_and_not_for_an_earlier_one():
    from measure import cost  # pyright: ignore

    earlier = bytearray(200 << 20)
    del earlier
    _, spent = cost(lambda: len(bytearray(64 << 20)))
    assert 60 < spent.megabytes < 70


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_sampled_texts_are_the_models_own(kind):
    """With the likeliest token instead of a drawn one: what the model itself would say, whatever the cache is cut into."""
    import sample  # pyright: ignore

    model = host(kind)
    greedy = {"draw": lambda logits: logits.argmax(-1, keepdim=True), "chunk": 5}
    ids = torch.tensor([[1]])
    with torch.no_grad():
        for _ in range(CONTEXT - 1):
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], -1)
    own = ids[0, 1:].tolist()
    assert sample.sample(model, 1, 3, CONTEXT, ends={0} - set(own), **greedy) == [own] * 3
    end = own[17]
    assert sample.sample(model, 1, 2, CONTEXT, ends={end}, **greedy) == [own[: own.index(end)]] * 2


def test_texts_can_be_drawn_from_likely_words_alone():
    """Of those that have most probability in some texts; with all words it is the same text."""
    import sample  # pyright: ignore

    model = host("llama")
    texts = [[3, 5, 3], [5, 5]]
    words = sample.likeliest(model, texts, 1, 6, ends=set())
    with torch.no_grad():
        logits = torch.cat([model(input_ids=torch.tensor([[1, *text]])).logits[0] for text in texts])
        shares = logits.softmax(-1).sum(0)
    assert set(words.tolist()) == set(shares.topk(6).indices.tolist())
    never = int(shares.argmin())  # or no text could end
    assert never in sample.likeliest(model, texts, 1, 6, ends={never}).tolist()
    assert len(sample.likeliest(model, texts, 1, 10**6, ends=set())) == model.config.vocab_size
    few = sample.sample(model, 1, 8, CONTEXT, ends=set(), words=words)
    assert {token for text in few for token in text} <= set(words.tolist())
    both = []
    for chosen in (None, torch.arange(model.config.vocab_size)):
        torch.manual_seed(0)
        both.append(sample.sample(model, 1, 8, CONTEXT, ends=set(), words=chosen))
    assert both[0] == both[1]
    assert "forward" not in vars(model.get_output_embeddings())  # it unembeds all words again


def test_drawn_tokens_have_the_models_probabilities():
    from sample import draw_tokens  # pyright: ignore

    torch.manual_seed(0)
    logits = 2 * torch.randn(1, 300)
    drawn = draw_tokens(logits.expand(20_000, -1)).flatten()
    shares = torch.bincount(drawn, minlength=300) / len(drawn)
    assert (shares - logits.softmax(-1)[0]).abs().max() < 0.01


def test_masks_without_training_are_measured_beside_a_twin(tmp_path, capsys):
    from untrained import Untrained, main  # pyright: ignore

    model = save_host(tmp_path / "model")
    twin = edgewise.gate(edgewise.load(model), edgewise.GateConfig("relative", b=2.0))
    edgewise.save(twin, tmp_path / "twin", edgewise.load_tokenizer(model))
    data = save_text(tmp_path / "text.txt")
    main(Untrained(str(model), str(tmp_path / "twin"), str(data), context=32, tokens="512"))
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    share = {name.strip(): float(edges.strip(" %")) for _, name, edges, *_ in rows}
    assert len(rows) == 1 + 3 + 6
    assert share["top-k of layers, untrained"] == pytest.approx(share["twin"], abs=2)
    assert share["random, untrained"] == pytest.approx(share["twin"], abs=2)


@pytest.mark.slow
def test_everything_runs_without_rivals(tmp_path):
    out = tmp_path / "page.md"
    command = [sys.executable, str(BENCHMARKS / "bench.py"), "--quick", "--out", str(out), "--peer", "none"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert text.count("not installed") == 2 * 2 + 2  # both kinds of pairs, and the twin
    assert "| transformers | the twin | 0.0e+00 |" in text
    assert "figures mean nothing" in text and str(tmp_path) not in text
