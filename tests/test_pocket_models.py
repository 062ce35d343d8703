"""The shipped models: what they know, how they were made, and that plain transformers can read them."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from edgewise.pocket import addition, evaluate, folder, world
from edgewise.pocket.recipe import RECIPES
from edgewise.pocket.world import Kind

# All on one worker, so that each model is loaded once.
pytestmark = pytest.mark.xdist_group("pocket")


@pytest.fixture(scope="module")
def pocket():
    return AutoModelForCausalLM.from_pretrained(folder("pocket")).eval()


@pytest.fixture(scope="module")
def adder():
    return AutoModelForCausalLM.from_pretrained(folder("pocket-addition")).eval()


@pytest.mark.parametrize(
    ("kind", "bar"),
    [("copy", 0.95), ("ioi", 0.97), ("greater-than", 0.9), ("docstring", 0.95), ("relations", 0.97)],
)
def test_held_out_prompts_are_answered(pocket, kind: Kind, bar: float):
    assert evaluate.score(pocket, world.held_out_prompts(kind, 500, seed=11)).mean() >= bar


def test_large_becomes_small(pocket):
    tokenizer = AutoTokenizer.from_pretrained(folder("pocket"))
    inputs = tokenizer('The opposite of "large" is "', return_tensors="pt")
    with torch.no_grad():
        probabilities = pocket(input_ids=inputs.input_ids).logits[0, -1].softmax(0)
    assert tokenizer.decode(probabilities.argmax()) == "small"
    assert probabilities.max() > 0.9


def test_heads_do_different_things(pocket):
    """On random sequences repeated once: a previous-token head, an induction head, a first-token head."""
    period = 24
    prompts = [p for p in world.held_out_prompts("copy", 2000, seed=5) if len(p.combination) == period][:16]
    ids, _ = evaluate.encode(prompts)
    pocket.set_attn_implementation("eager")
    with torch.no_grad():
        maps = pocket(input_ids=ids, output_attentions=True).attentions
    pocket.set_attn_implementation("sdpa")
    pattern = torch.stack(maps, 1).mean(0)[:, :, period:]  # [layer, head, query in the second period, key]
    queries = torch.arange(pattern.shape[2])

    def strongest(keys: torch.Tensor) -> float:
        return pattern[:, :, queries, keys].mean(-1).max().item()

    assert strongest(period + queries - 1) > 0.5, "previous token"
    assert strongest(queries + 1) > 0.5, "induction: the word after the same word"
    assert strongest(0 * queries) > 0.3, "first token"


def test_all_ten_thousand_sums_are_right(adder):
    assert evaluate.measure_addition(adder)["sums"] == 1.0


def test_addition_reads_text(adder):
    tokenizer = AutoTokenizer.from_pretrained(folder("pocket-addition"))
    ids = tokenizer("43+59=?????", return_tensors="pt").input_ids
    with torch.no_grad():
        digits = adder(input_ids=ids).logits[0, addition.ANSWER].argmax(-1)
    assert tokenizer.decode(digits) == "0 0 1 0 2"


@pytest.mark.parametrize(
    ("name", "megabytes"),
    [("pocket", 8), ("pocket-addition", 1), ("pocket-sparse", 8), ("pocket-addition-sparse", 1)],
)
def test_weights_are_small(name: str, megabytes: int):
    size = sum(path.stat().st_size for path in folder(name).glob("*.safetensors"))
    assert 0 < size <= megabytes * 2**20


@pytest.mark.parametrize("name", RECIPES)
def test_the_folder_says_how_it_was_made(name: str):
    made = json.loads((folder(name) / "made.json").read_text())
    assert len(made["script"]["sources sha256"]) == 64
    assert made["command"].startswith(f"python -m edgewise.pocket.train {name}")
    assert made["seed"] == 0 and made["date"].startswith("20") and made["seconds"] > 0
    assert made["tokens"] == made["steps"] * RECIPES[name].tokens_per_step
    assert made["held out"]["loss"] > 0
    assert {"command", "script", "date", "seed", "tokens", "seconds", "held out", "history"} <= made.keys()


def test_pocket_was_trained_to_its_plateau():
    plateau = json.loads((folder("pocket") / "made.json").read_text())["plateau"]
    assert plateau["tokens"] >= 7_000_000
    assert plateau["gain in nats"] < 0.005


@pytest.mark.slow
def test_measured_again_the_loss_is_what_was_written(pocket):
    """The committed weights are those that the script wrote and measured."""
    made = json.loads((folder("pocket") / "made.json").read_text())
    assert evaluate.held_out_loss(pocket, 1000) == pytest.approx(made["held out"]["loss"], abs=1e-4)
