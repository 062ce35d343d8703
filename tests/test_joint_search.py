"""Joint searches: objectives against plain patching and finite differences, searches against all subsets."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hand_made_results import circuit
from test_circuits import GIGABYTE, model_of, prompts
from torch import Tensor

import edgewise
from edgewise.circuits.config import CircuitConfig
from edgewise.circuits.curve import grid
from edgewise.circuits.edge_objective import EdgeObjective
from edgewise.circuits.edge_patching import scores_with_edges
from edgewise.circuits.edge_tokens import EdgeTokenObjective, find_edge_tokens
from edgewise.circuits.faithful_order import faithful_order
from edgewise.circuits.find import find_circuits
from edgewise.circuits.find_minimal import Interrupted, MinimalSearch
from edgewise.circuits.head_objective import HeadObjective
from edgewise.circuits.heads import estimate_head_effects, scores_with_heads
from edgewise.circuits.joint_search import JointSearch
from edgewise.circuits.learned_mask import MaskTraining, expected_size, hard_concrete, learn_mask
from edgewise.circuits.mib import Faithfulness, circuit_sizes, measure_faithfulness, read_mib, write_mib
from edgewise.circuits.minimal import MinimalCircuit
from edgewise.circuits.objective import MaskGradient, Objective
from edgewise.circuits.replay import Replay, record
from edgewise.circuits.result import CircuitResult
from edgewise.circuits.streams import record_edges, wiring_of
from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.models.loaded import load_models
from edgewise.tasks import make_task
from edgewise.tasks.pairs import Split
from edgewise.tasks.roles import Roles, roles_of


def replay_of(kind: str, sparse: bool = False, dtype: torch.dtype = torch.float32, **options: Any) -> Replay:
    return record(model_of(kind, sparse).to(dtype), prompts(**options), "logit difference")


def random_masks(copies: int, total: int, seed: int = 0, share: float = 0.6) -> Tensor:
    """Circuits of which some differ from the first in one component only, as those of a polish."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.rand(copies, total, generator=generator) < share
    masks[: copies // 2] = masks[0]
    drawn = torch.randint(0, total, (copies // 2,), generator=generator)
    masks[torch.arange(copies // 2), drawn] ^= True
    return masks


KINDS = [(kind, sparse) for kind in ("gpt2", "llama", "gpt_neox") for sparse in (False, True)]


@pytest.mark.parametrize(("kind", "sparse"), KINDS)
def test_heads_recover_what_patching_of_each_mask_gives(kind, sparse):
    replay = replay_of(kind, sparse)
    objective = HeadObjective({"fit": replay}, GIGABYTE)
    masks = random_masks(10, objective.total)
    keep = masks.view(10, 1, *objective.shape).expand(-1, replay.n, -1, -1)
    plain = scores_with_heads(replay, keep, GIGABYTE) - replay.corrupt.scores
    torch.testing.assert_close(objective.recovered(masks, "fit"), plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "sparse"), [*KINDS, ("olmo2", False), ("gemma3", False)])
def test_edges_recover_what_patching_of_each_mask_gives(kind, sparse):
    replay = replay_of(kind, sparse)
    wiring = wiring_of(replay)
    objective, runs = EdgeObjective({"fit": replay}, wiring, GIGABYTE), record_edges(replay, wiring)
    for share in (0.6, 0.03):  # with few edges, most heads and MLPs read nothing but the corrupt stream
        masks = random_masks(8, objective.total, share=share)
        grid = torch.zeros(8, *wiring.exists.shape)
        grid[:, wiring.exists] = masks.float()
        plain = torch.stack([scores_with_edges(runs, keep.expand(replay.n, -1, -1)) for keep in grid])
        recovered = objective.recovered(masks, "fit")
        torch.testing.assert_close(recovered, plain - replay.corrupt.scores, atol=1e-5, rtol=1e-5)


def objective_of(what: str, replays: dict[Split, Replay]) -> HeadObjective | EdgeObjective:
    if what == "heads":
        return HeadObjective(replays, GIGABYTE)
    return EdgeObjective(replays, wiring_of(replays["fit"]), GIGABYTE)


@pytest.mark.parametrize("what", ["heads", "edges"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox", "qwen3"])
def test_the_gradient_at_soft_masks_equals_finite_differences(what, kind):
    replay = replay_of(kind, dtype=torch.float64, n=3)
    objective = objective_of(what, {"fit": replay})
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(objective.total, generator=generator, dtype=torch.float64)
    direction = torch.randn(objective.total, generator=generator, dtype=torch.float64)
    gradient = objective.gradient(mask[None]).gradient[0]
    single = kind in ("llama", "qwen3")  # their norms compute in single precision whatever the model's
    step, tolerance = (3e-3, 3e-3) if single else (1e-5, 1e-5)
    moved = torch.stack([mask - step * direction, mask + step * direction])
    below, above = objective.gradient(moved).explained
    assert gradient @ direction == pytest.approx((above - below).item() / (2 * step), rel=tolerance)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_gradient_of_a_twins_last_heads_equals_finite_differences(kind):
    """No gate comes after the last layer's heads. Before gates the gradient is that of their surrogate, on purpose."""
    replay = replay_of(kind, sparse=True, dtype=torch.float64, n=3)
    objective = HeadObjective({"fit": replay}, GIGABYTE)
    mask, last = torch.full((objective.total,), 0.7, dtype=torch.float64), objective.shape[1]
    gradient = objective.gradient(mask[None]).gradient[0]
    for head in range(objective.total - last, objective.total):
        step = torch.zeros_like(mask).index_fill(0, torch.tensor([head]), 3e-3)
        below, above = objective.gradient(torch.stack([mask - step, mask + step])).explained
        assert gradient[head].item() == pytest.approx((above - below).item() / 6e-3, rel=3e-3, abs=1e-4)


@pytest.mark.parametrize("what", ["heads", "edges"])
def test_gradients_of_weighted_prompts_and_in_chunks_are_the_same(what):
    replay = replay_of("gpt2", n=4)
    much, little = (
        HeadObjective({"fit": replay}, memory)
        if what == "heads"
        else EdgeObjective({"fit": replay}, wiring_of(replay), memory)
        for memory in (GIGABYTE, 1)
    )
    mask, weights = torch.full((1, much.total), 0.6), torch.tensor([2.0, 0, 1, 1])
    twice = record(
        replay.model, type(replay.prompts)(*(x[[0, 0, 2, 3]] for x in replay.prompts)), replay.metric
    )
    repeated = objective_of(what, {"fit": twice}).gradient(mask)
    for objective in (much, little):
        weighted = objective.gradient(mask, weights)
        torch.testing.assert_close(weighted.gradient, repeated.gradient, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(weighted.explained, repeated.explained, atol=1e-4, rtol=1e-3)


def edge_tokens_of(replay: Replay) -> EdgeTokenObjective:
    """Random roles: a token plays any of three, whatever the prompt."""
    shape = replay.n, replay.first + replay.clean.hidden[0].shape[1]
    numbers = torch.randint(3, shape, generator=torch.Generator().manual_seed(0))
    roles: dict[Split, Roles] = {"fit": Roles(["a", "b", "c"], numbers)}
    return EdgeTokenObjective({"fit": replay}, wiring_of(replay), GIGABYTE, roles)


@pytest.mark.parametrize(("kind", "sparse"), KINDS)
def test_edges_at_all_tokens_are_edges(kind, sparse):
    replay = replay_of(kind, sparse)
    edges, at_tokens = objective_of("edges", {"fit": replay}), edge_tokens_of(replay)
    masks = random_masks(6, edges.total)
    everywhere = torch.stack([at_tokens.everywhere(mask) for mask in masks])
    recovered = at_tokens.recovered(everywhere, "fit")
    torch.testing.assert_close(recovered, edges.recovered(masks, "fit"), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_logits_read_edges_at_the_last_token_only(kind):
    replay = replay_of(kind)
    edges, last = objective_of("edges", {"fit": replay}), replay.prompts.last[:, None]
    tokens = torch.arange(replay.prompts.clean.shape[1])
    roles: dict[Split, Roles] = {"fit": Roles(["before", "end"], (tokens == last).long())}
    at_tokens = EdgeTokenObjective({"fit": replay}, wiring_of(replay), GIGABYTE, roles)
    without = random_masks(4, edges.total)
    without |= torch.tensor([not name.endswith("-> logits") for name in edges.names(range(edges.total))])
    everything = torch.ones_like(without)
    before, end = (torch.cat(parts, 1) for parts in ((without, everything), (everything, without)))
    recovered = edges.recovered(torch.cat([everything, without]), "fit")
    actual = at_tokens.recovered(torch.cat([before, end]), "fit")
    torch.testing.assert_close(actual, recovered, atol=1e-5, rtol=1e-5)
    assert (recovered[:4] - recovered[4:]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox"])
def test_the_gradient_of_edges_at_tokens_equals_finite_differences(kind):
    objective = edge_tokens_of(replay_of(kind, dtype=torch.float64))
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(objective.total, generator=generator, dtype=torch.float64)
    direction = torch.randn(objective.total, generator=generator, dtype=torch.float64)
    gradient = objective.gradient(mask[None]).gradient[0]
    moved = torch.stack([mask - 1e-5 * direction, mask + 1e-5 * direction])
    below, above = objective.gradient(moved).explained
    assert gradient @ direction == pytest.approx((above - below).item() / 2e-5, rel=1e-5)


def test_circuits_of_edges_at_tokens_that_share_layers_are_as_if_computed_alone():
    objective = edge_tokens_of(replay_of("llama"))
    masks = random_masks(8, objective.total)
    alone = torch.cat([objective.compute(mask[None], "fit") for mask in masks])
    torch.testing.assert_close(objective.recovered(masks, "fit"), alone, atol=1e-5, rtol=1e-5)


def test_estimated_head_effects_are_the_gradient_at_all_heads():
    replay = replay_of("llama")
    lost = estimate_head_effects(replay, GIGABYTE).lost  # [n, layers, heads], of each prompt's own effect
    pooled = (lost * replay.effect[:, None, None]).sum(0) / replay.effect.sum()
    objective = HeadObjective({"fit": replay}, GIGABYTE)
    gradient = objective.gradient(torch.ones(1, objective.total)).gradient[0]
    torch.testing.assert_close(pooled.flatten(), gradient, atol=1e-4, rtol=1e-3)


# ----------------------------------------------------------------------------------------------------------- searches


def search_for(objective: Objective, threshold: float, **options: Any) -> MinimalCircuit:
    """With the ranking by the gradient at all components."""
    everything = torch.ones(1, objective.total)
    ranking = objective.gradient(everything).gradient[0].argsort(descending=True)
    counts = torch.tensor(grid(objective.total))
    masks = ranking.argsort() < counts[:, None]
    _, enough = objective.explained_enough(masks, threshold)
    prefix = int(counts[enough.int().argmax()])
    actual = MinimalSearch(objective, threshold, ranking, prefix, **options).run()
    assert actual.size <= prefix
    return actual


def mask_of(objective: Objective, names: list[str]) -> Tensor:
    numbers = {name: i for i, name in enumerate(objective.names(range(objective.total)))}
    return torch.zeros(objective.total, dtype=torch.bool).index_fill(
        0, torch.tensor([numbers[name] for name in names], dtype=torch.long), True
    )


def assert_minimal(objective: Objective, actual: MinimalCircuit, threshold: float) -> None:
    mask = mask_of(objective, actual.components)
    levels: Any = actual.levels
    assert levels["fit"] >= threshold and levels["validation"] >= threshold
    assert objective.explained_enough(mask[None], levels)[1].item()
    without = mask & ~torch.eye(objective.total, dtype=torch.bool)[mask]
    assert actual.is_minimal and not objective.explained_enough(without, levels)[1].any()


@pytest.mark.parametrize(("kind", "sparse", "seed"), [("llama", False, 2), ("gpt2", True, 3)])
def test_minimal_heads_are_within_one_of_the_smallest_of_all_subsets(kind, sparse, seed):
    replay = record(model_of(kind, sparse, seed), prompts(3), "logit difference")
    objective = HeadObjective({"fit": replay}, GIGABYTE)
    subsets = (torch.arange(2**12)[:, None] >> torch.arange(12)) & 1 == 1
    shares, sizes = objective.explained(subsets), subsets.sum(1)
    for threshold in (0.5, 0.8, 0.95):
        actual = search_for(objective, threshold, scrutinise=False)
        assert_minimal(objective, actual, threshold)
        assert actual.size <= int(sizes[shares >= threshold].min()) + 1


@pytest.mark.parametrize("what", ["heads", "edges"])
def test_circuits_of_the_pocket_twin_are_minimal_on_fit_and_validation_prompts(what):
    model, tokenizer = edgewise.load("pocket-sparse"), edgewise.load_tokenizer("pocket")
    task = make_task("antonym", tokenizer, 16)
    replay = record(model, task.prompts(), task.metric)
    replays = {split: replay.select(torch.tensor([*pairs])) for split, pairs in task.splits.items()}
    assert {split: replay.n for split, replay in replays.items()} == {"fit": 4, "validation": 4, "test": 8}
    objective = objective_of(what, replays)
    actual = search_for(objective, 0.9, scrutinise=what == "heads")
    assert_minimal(objective, actual, 0.9)
    assert actual.explained.fit >= 0.9 and (actual.explained.validation or 0) >= 0.9
    assert actual.explained.test == actual.explained.held_out
    assert len(actual.path.sizes) == len(actual.path.fit) and actual.path.sizes[-1] == actual.size
    assert not {*actual.dropped} & {*actual.components}
    if what == "heads":
        assert actual.controls is not None and actual.stability is not None and actual.starts is not None
        assert abs(actual.controls.random) < 0.4 and actual.controls.shuffled_size is None


class Sums(Objective):
    """Components whose contributions to the metric of each prompt, [m, n], add up."""

    def __init__(self, contributions: dict[Split, Tensor]) -> None:
        super().__init__()
        self.contributions = contributions
        self.total = len(contributions["fit"])
        self.effects = {split: of_split.sum(0) for split, of_split in contributions.items()}
        self.candidates = torch.ones(self.total, dtype=torch.bool)

    def names(self, components: Any) -> list[str]:
        return [str(i) for i in components]

    def compute(self, masks: Tensor, split: Split) -> Tensor:
        return masks.float() @ self.contributions[split]

    def gradient(
        self, masks: Tensor, weights: Tensor | None = None, wanted: Tensor | None = None
    ) -> MaskGradient:
        effect = self.effects["fit"].sum()
        gradient = self.contributions["fit"].sum(1) / effect
        return MaskGradient(masks.float() @ gradient, gradient.expand(masks.shape))

    def shuffled(self, seed: int) -> "Sums":
        contributions = self.contributions["fit"].roll(1, 1) * torch.tensor([1.0, -1]).repeat(2)
        shuffled = Sums({"fit": contributions})
        shuffled.effects = {"fit": self.effects["fit"]}
        return shuffled


def sums(noise: float) -> Sums:
    """100 components, alike on average; on few prompts some seem to count more than they do."""
    generator = torch.Generator().manual_seed(0)
    splits: tuple[Split, ...] = ("fit", "validation", "selection", "test")
    return Sums({split: 0.1 + noise * torch.randn(100, 4, generator=generator) for split in splits})


def polished(objective: Objective, threshold: float, at_once: float = 0.0) -> JointSearch:
    search = JointSearch(objective, threshold, at_once=at_once)
    assert search.start(torch.ones(objective.total, dtype=torch.bool))
    search.eliminate()
    search.polish()
    return search


@pytest.mark.parametrize("at_once", [0.0, 0.2])
def test_a_search_that_fits_its_prompts_goes_back_to_what_holds_up_on_others(at_once):
    objective = sums(noise=0.2)
    search = polished(objective, 0.9, at_once)
    smallest = search.best.clone()
    assert objective.explained(smallest[None], "selection") < 0.9
    search.settle()
    assert objective.explained(search.best[None], "selection") >= 0.9 == search.levels["selection"]
    beyond = search.beyond
    assert beyond.sizes[-1] == int(smallest.sum()) < search.size == search.path.sizes[-1]
    assert len(beyond.sizes) == len(beyond.fit) == len(beyond.selection)
    assert all(share < 0.9 for share in beyond.selection)
    search.polish()
    without = search.best & ~torch.eye(100, dtype=torch.bool)[search.best]
    assert min(search.levels.values()) >= 0.9 and search.levels["fit"] > 0.9
    assert not objective.explained_enough(without, search.levels)[1].any()
    held_out = objective.explained(torch.stack([search.best, smallest]), "test")
    assert abs(held_out[0] - 0.9) < abs(held_out[1] - 0.9)


def test_a_search_whose_smallest_circuit_holds_up_stays_there():
    search = polished(sums(noise=0.0), 0.895)
    search.settle()
    assert search.size == 90 and {*search.levels.values()} == {0.895} and search.beyond.sizes == []


@pytest.mark.parametrize(("kind", "sparse"), [*KINDS, ("qwen3", False)])
def test_a_circuit_of_heads_is_the_circuit_of_all_edges_between_them(kind, sparse):
    replay = replay_of(kind, sparse)
    heads, edges = (objective_of(what, {"fit": replay}) for what in ("heads", "edges"))
    masks = random_masks(4, heads.total)
    wiring = wiring_of(replay)
    within = torch.stack([wiring.within(heads.names(mask.nonzero()[:, 0].tolist())) for mask in masks])
    recovered = heads.recovered(masks, "fit")
    torch.testing.assert_close(edges.recovered(within, "fit"), recovered, atol=1e-5, rtol=1e-5)
    assert 0 < within.sum() < within.numel()


def test_edges_at_tokens_of_the_pocket_twin_are_minimal_and_of_the_circuit():
    model, tokenizer = edgewise.load("pocket-sparse"), edgewise.load_tokenizer("pocket")
    task = make_task("antonym", tokenizer, 16)
    replay, all_roles = record(model, task.prompts(), task.metric), roles_of(task.pairs)
    roles: dict[Split, Roles] = {}
    replays: dict[Split, Replay] = {}
    for split, pairs in task.splits.items():
        roles[split] = all_roles._replace(numbers=all_roles.numbers[list(pairs)])
        replays[split] = replay.select(torch.tensor([*pairs]))
    objective = EdgeTokenObjective(replays, wiring_of(replay), GIGABYTE, roles)
    score = objective.everywhere(torch.ones(objective.wiring.count, dtype=torch.bool))
    gradient = objective.gradient(score[None]).gradient[0].unflatten(0, (len(all_roles.names), -1))
    edges = gradient.sum(0).argsort(descending=True).argsort() < 60
    actual = find_edge_tokens(objective, edges, 0.9, lambda size, explained: None)
    assert actual is not None
    assert_minimal(objective, actual, 0.9)
    assert actual.size < int(objective.everywhere(edges).sum())
    named = {*objective.wiring.edge_names(edges.nonzero()[:, 0].tolist())}
    assert {name.partition(" at ")[0] for name in actual.components} <= named


def test_roles_are_slots_and_the_tokens_after_them():
    task = make_task("ioi", edgewise.load_tokenizer("pocket"), 16)
    roles = roles_of(task.pairs)
    for pair, numbers in zip(task.pairs, roles.numbers.tolist(), strict=True):
        names = [roles.names[number] for number in numbers]
        for slot, position in pair.positions.items():
            assert names[position] == slot
        after = pair.positions["subject"] + 1
        assert names[after] in ("subject + 1", "indirect object", "second subject", "end")


class InterruptedObjective(HeadObjective):
    """Interrupted as by Ctrl-C, after some circuits."""

    left = 6

    def compute(self, masks: Tensor, split: Split) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().compute(masks, split)


def test_an_interrupted_search_keeps_its_smallest_circuit():
    objective = InterruptedObjective({"fit": replay_of("gpt2")}, GIGABYTE)
    objective.recovered(torch.ones(1, objective.total, dtype=torch.bool), "fit")
    with pytest.raises(Interrupted) as interrupt:
        MinimalSearch(objective, 0.5, torch.arange(objective.total), objective.total).run()
    actual = interrupt.value.partial
    assert 0 < actual.size < objective.total and not actual.is_minimal and actual.explained.fit >= 0.5


def test_minimal_circuits_are_in_the_table_and_read_back_from_the_file(tmp_path):
    config = CircuitConfig(task="antonym", prompts=8, edges=False, out=tmp_path)
    result = find_circuits("pocket-sparse", config)
    assert CircuitResult.load(tmp_path) == result
    (model,) = result.models
    assert model.heads is not None and model.heads.minimal is not None and model.held_out == 8
    assert model.counts()["heads_minimal"] == model.heads.minimal.size <= model.heads.prefix.needed
    rows = {label.strip() for label, *_ in result.table()}
    assert {"heads, prefix", "heads, minimal", "random / complement", "shuffled answers"} <= rows
    assert len(result.examples) == 8


class Impatient(Display):
    def bar(self, what: str, total: int) -> Any:
        if "token edges" in what:
            raise KeyboardInterrupt
        return super().bar(what, total)


def test_an_interrupted_command_saves_what_it_has_found(tmp_path):
    loaded = load_models("pocket-sparse", display=Impatient(quiet=True))
    config = CircuitConfig(task="antonym", prompts=4, edges=False, scrutiny=False, out=tmp_path)
    with pytest.raises(Interrupted):
        find_circuits(loaded, config)
    (circuit,) = CircuitResult.load(tmp_path).models
    assert circuit.heads is not None and circuit.heads.minimal is not None and circuit.token_edges is None
    assert "interrupted" in circuit.warnings[-1]


def test_a_learned_mask_keeps_the_components_that_count():
    """The effect is 0.5 + 0.45 + 0.05 / 298 * (all others)."""
    effect = torch.full((300,), 0.05 / 298)
    effect[7], effect[200] = 0.5, 0.45

    def gradient(masks: Tensor) -> MaskGradient:
        return MaskGradient(masks @ effect, effect.expand_as(masks))

    order = learn_mask(gradient, torch.ones(300, dtype=torch.bool), 0.9, MaskTraining(steps=60))
    assert {*order[:2].tolist()} == {7, 200} and len(order) == 300


def test_hard_concrete_gates_are_closed_as_often_as_expected():
    log_alpha = torch.tensor([-3.0, 0.0, 2.0])
    noise = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0))
    is_open = (hard_concrete(log_alpha, noise) > 0).float()
    assert is_open.mean(0).sum().item() == pytest.approx(expected_size(log_alpha).item(), rel=0.02)


# ---------------------------------------------------------------------------------------------------------- standards

EDGE_NAME = r"^(input|a\d+\.h\d+|m\d+)->(a\d+\.h\d+<[qkv]>|m\d+|logits)$"


def assert_mib_schema(content: Any) -> None:
    """What EAP-IG's `Graph.from_json` reads."""
    assert {*content} == {"cfg", "nodes", "edges"}
    assert {*content["cfg"]} == {"n_layers", "n_heads", "parallel_attn_mlp", "d_model"}
    nodes = (
        {"input", "logits"} | {f"m{i}" for i in range(3)} | {f"a{i}.h{j}" for i in range(3) for j in range(4)}
    )
    assert {*content["nodes"]} == nodes
    assert all(isinstance(node["in_graph"], bool) for node in content["nodes"].values())
    for name, edge in content["edges"].items():
        assert re.match(EDGE_NAME, name) and {*name.partition("<")[0].split("->")} <= nodes
        assert isinstance(edge["score"], float) and isinstance(edge["in_graph"], bool)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_mib_graphs_are_read_back_as_they_were_written(tmp_path, kv_heads):
    sizes = {"n_layers": 3, "n_heads": 4, "d_model": 32, "parallel_attn_mlp": False}
    model = replace(circuit("tiny", "dense", 3, 2, kv_heads=None if kv_heads == 4 else 2), mib_config=sizes)
    assert model.edges is not None and model.kv_heads is not None
    path = write_mib(model, tmp_path / "mib.json")
    assert_mib_schema(json.loads(path.read_text()))
    read = read_mib(path, model.kv_heads)
    ranking = dict(model.edges.prefix.ranking)
    assert {name: score for name, (score, _) in read.items()} == pytest.approx(ranking)
    assert {name for name, (_, kept) in read.items() if kept} == {*model.edges.best.components}


@pytest.mark.parametrize(
    "content",
    ["[]", "{", '{"cfg": {"n_heads": 1, "n_layers": 1}, "edges": {"x->y": {"score": 1, "in_graph": true}}}'],
)
def test_a_file_that_is_no_mib_graph_is_refused(tmp_path, content):
    (tmp_path / "graph.json").write_text(content)
    with pytest.raises(EdgewiseError, match="MIB"):
        read_mib(tmp_path / "graph.json", [1])


def test_areas_of_faithfulness():
    perfect, none = Faithfulness([1.0] * 10), Faithfulness([0.0] * 10)
    assert perfect.cpr == pytest.approx(0.999) and perfect.cmd == 0
    assert none.cpr == 0 and none.cmd == pytest.approx(0.999)
    assert Faithfulness([1.5] * 10).cmd == pytest.approx(0.4995)


def test_an_order_close_to_the_model_is_nested_and_closer_than_the_ranking():
    replay = replay_of("gpt2", n=4)
    objective = objective_of("edges", {"fit": replay})
    ranking = objective.gradient(torch.ones(1, objective.total)).gradient[0].argsort(descending=True)
    actual = faithful_order(objective, [ranking])
    assert actual.sort().values.tolist() == list(range(objective.total))
    assert (
        measure_faithfulness(objective, actual, "fit").cmd
        < measure_faithfulness(objective, ranking, "fit").cmd
    )


def test_faithfulness_is_measured_at_mibs_sizes():
    objective = objective_of("edges", {"fit": replay_of("gpt2")})
    ranking = torch.arange(objective.total)
    masks = torch.stack([ranking < size for size in circuit_sizes(objective.total)])
    assert circuit_sizes(32491)[:3] == [32, 64, 162] and masks[-1].all()
    actual = measure_faithfulness(objective, ranking, "fit").explained
    assert actual == pytest.approx(objective.explained(masks).tolist()) and actual[-1] == pytest.approx(
        1, abs=1e-4
    )
