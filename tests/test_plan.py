"""Estimated costs against measured ones: parameters, FLOPs by torch's own counter, memory; layouts; `edgewise plan`."""

import json
import shlex
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from accelerate.commands.launch import launch_command_parser
from hosts import HOSTS, host
from runs import command, said
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry
from transformers.models.llama import LlamaConfig
from transformers.models.mixtral import MixtralConfig

import edgewise
from edgewise.circuits.eap import edge_attribution
from edgewise.circuits.heads import head_effects
from edgewise.circuits.replay import Replay, record
from edgewise.circuits.streams import record_edges, wiring_of
from edgewise.kernels.backend import Inputs
from edgewise.kernels.equations import GateSpec
from edgewise.kernels.noise import noise_keys
from edgewise.kernels.operator import BACKENDS
from edgewise.kernels.rows import RowBlock, RowGradients, backward_rows, forward_rows
from edgewise.planning import flops, memory
from edgewise.planning.gpu_layout import smallest_layout
from edgewise.planning.hardware import GPUS, H100, USABLE, ThisMachine, measure_machine
from edgewise.planning.plan import ASSUMED_TOKENS
from edgewise.planning.setup import Setup, candidate_vocabulary
from edgewise.planning.shape import Shape, shape_of
from edgewise.tasks.pairs import Prompts
from edgewise.training.sparsify.config import SparsifyConfig
from edgewise.training.sparsify.parameters import train_attention_only, with_lora
from edgewise.training.sparsify.recipe import RECIPES
from edgewise.training.sparsify.sampled_softmax import N_LIKELY, N_SAMPLED
from edgewise.training.transcoder.objective import TranscoderObjective
from edgewise.training.transcoder.transcoder import Transcoder, TranscoderInfo

BOTH = ("gpt2", "llama")  # the second shares keys and values between heads
T = 64
MACHINE = ThisMachine(1e11)
SEVEN_BILLION = {
    "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "vocab_size": 32_000, "max_position_embeddings": 4096, "dtype": "bfloat16",
}  # fmt: skip


def shape(kind: str) -> Shape:
    return shape_of(host(kind).config, kind)


def large(**others) -> Shape:
    return shape_of(LlamaConfig(**{**SEVEN_BILLION, **others}), "large")


# ------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("kind", HOSTS)
def test_sizes_are_those_of_the_model(kind):
    model, sizes = host(kind), shape(kind)
    assert sizes.parameters == sum(p.numel() for p in model.parameters())
    assert (sizes.layers, sizes.heads, sizes.width, sizes.vocabulary) == (3, 4, 32, 97)
    assert sizes.inner == (128 if kind == "gpt2" else 48)
    assert sizes.gated_mlp == (kind not in ("gpt2", "gpt_neox"))


@pytest.mark.parametrize("kind", BOTH)
def test_edges_are_those_that_circuits_count(kind):
    replay, sizes = recorded(kind), shape(kind)
    wiring = wiring_of(replay)
    counted = (wiring.count, len(wiring.sources), len(wiring.targets))
    assert (sizes.edges, sizes.edge_sources, sizes.edge_targets) == counted


def test_gpt2_has_the_number_of_edges_that_is_known():
    gpt2 = replace(shape("gpt2"), layers=12, heads=12, kv_heads=12)
    assert gpt2.edges == 32_491


# ------------------------------------------------------------------------------------------------------------- FLOPs


class Counting(TorchDispatchMode):
    """torch's own counts of matrix products, without FlopCounterMode's hooks on modules, which `autograd.grad` trips over.
    The gate's `baddbmm_` is counted as `baddbmm`, which is the one that torch knows."""

    flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        known = func.overloadpacket
        known = torch.ops.aten.baddbmm if known is torch.ops.aten.baddbmm_ else known
        if known in flop_registry:
            self.flops += flop_registry[known](*args, **{**(kwargs or {}), "out_val": out})
        return out


def test_the_count_is_that_of_torch():
    twin, ids = edgewise.gate(host("llama")).train(), torch.randint(0, 97, (2, T))
    edgewise.mode(twin, "sample")
    with FlopCounterMode(display=False) as by_torch, Counting() as ours:
        twin(input_ids=ids, use_cache=False).logits.sum().backward()
    assert ours.flops == by_torch.get_total_flops()


def test_the_operators_formulas_count_its_products():
    """What torch's counter is told about the operator is what it counts inside."""
    q, k, v = torch.randn(2, 4, 150, 8), torch.randn(2, 2, 170, 8), torch.randn(2, 2, 170, 6)
    inputs = Inputs(q, k, v, torch.zeros(4))
    spec = GateSpec(1.0, "deterministic", 1.0)
    with Counting() as forward:
        result = BACKENDS["torch"].forward(inputs, spec)
    with Counting() as backward:
        assert BACKENDS["torch"].backward is not None
        BACKENDS["torch"].backward(inputs, spec, result, torch.ones_like(result.y), torch.ones(2, 4))
    with Counting() as by_formula:
        y, expected_edges, *_ = torch.ops.edgewise.gated_attention(
            *(x.requires_grad_() for x in inputs), None, None, None, None, 1.0, 1.0, True, 0, True, "torch"
        )
    assert by_formula.flops == forward.flops
    with by_formula:
        (y.sum() + expected_edges.sum()).backward()
    assert by_formula.flops == forward.flops + backward.flops


def trained_by(twin, lora, attention_only):
    if attention_only:
        train_attention_only(twin)
    return twin if lora is None else with_lora(twin, lora, 0, attention_only)


@pytest.mark.parametrize("attention_only", [False, True])
@pytest.mark.parametrize("lora", [None, 4])
@pytest.mark.parametrize("kind", BOTH)
def test_flops_of_a_step_are_those_that_torch_counts(kind, lora, attention_only):
    batch = 2
    twin = edgewise.gate(host(kind)).train()
    trained = trained_by(twin, lora, attention_only)
    dense = edgewise.install(host(kind))
    ids = torch.randint(0, 97, (batch, T))
    with Counting() as counted:
        with edgewise.mode(twin, "deterministic"), edgewise.tap(twin) as activations:
            logits = trained(input_ids=ids, use_cache=False).logits
        with torch.no_grad():
            dense(input_ids=ids, use_cache=False)
        (logits.logsumexp(-1).mean() + activations.expected_density.mean()).backward()
    sizes = shape(kind)
    setup = Setup(T, batch, lora, attention_only, RECIPES["small"], packed=False)
    estimated = flops.sparsify(sizes, setup).flops
    uncounted = 4 * sizes.layers * sizes.attention_width * (T + 1) / 2  # torch's own attention on a CPU
    error = counted.flops / (batch * T) / (estimated - uncounted) - 1
    # without an embedding to train, the first layer's queries, keys and values need no gradient at their inputs
    all_weights = lora is None and not attention_only
    assert abs(error) < 1e-6 if all_weights else -0.05 < error <= 1e-6


def test_sampled_softmax_computes_logits_of_candidates_only():
    sizes, default, paper = large(vocab_size=50_000), RECIPES["small"], RECIPES["paper"]
    assert candidate_vocabulary(sizes, Setup(1000, 1, recipe=default)) == N_LIKELY + N_SAMPLED + 1000
    assert candidate_vocabulary(sizes, Setup(1000, 1000, recipe=default)) == 50_000
    assert candidate_vocabulary(sizes, Setup(1000, 1, recipe=default, sharded=True)) == 50_000
    assert candidate_vocabulary(sizes, Setup(1000, 1, recipe=paper)) == 50_000
    assert candidate_vocabulary(shape("llama"), Setup(1000, 1, recipe=default)) == 97


def test_queries_are_multiplied_with_keys_up_to_the_end_of_their_block():
    assert flops.keys_in_blocks(1) == 1 and flops.keys_in_blocks(64) == 64
    assert flops.keys_in_blocks(128) == (128 + 64) / 2
    assert flops.keys_in_blocks(100) == (64 * 64 + 36 * 100) / 100


def recorded(kind: str, n: int = 3, t: int = 10) -> Replay:
    return record(edgewise.install(host(kind)), prompts(n, t), "logit difference")


def prompts(n: int, t: int) -> Prompts:
    generator = torch.Generator().manual_seed(0)
    clean = torch.randint(1, 97, (n, t), generator=generator)
    corrupt = clean.clone()
    corrupt[:, 0] = (clean[:, 0] + 1) % 97
    columns, signs = (
        torch.randint(1, 97, (n, 2), generator=generator),
        torch.tensor([[1.0, -1.0]]).repeat(n, 1),
    )
    return Prompts(clean, corrupt, torch.full((n,), t - 1), columns, signs)


@pytest.mark.parametrize("kind", BOTH)
def test_flops_of_circuits_are_those_that_torch_counts(kind):
    n, t, steps, sizes = 3, 10, 2, shape(kind)
    model, given = edgewise.install(host(kind)), prompts(n, t)
    with Counting() as patching:
        replay = record(model, given, "logit difference")
        head_effects(replay, 2**30)
    wiring = wiring_of(replay)
    with Counting() as attributing:
        edge_attribution(record_edges(replay, wiring), steps)
    # torch's own attention is not counted on a CPU
    layer_runs = 2 * sizes.layers + (sizes.heads * sizes.layers + 1 / n) * (sizes.layers + 1)
    pairs = n * t * sizes.attention_width * (t + 1) / 2
    patched = flops.patch_heads(sizes, n, t).flops - 4 * layer_runs * pairs
    attributed = flops.attribute_edges(sizes, n, t, steps).flops - (8 + 14 * steps) * sizes.layers * pairs
    assert patching.flops == pytest.approx(patched, rel=0.02)
    # the first layer's queries, keys and values need no gradient at their inputs
    assert attributing.flops == pytest.approx(attributed, rel=0.05)


def transcoder(sizes: Shape, features: int) -> Transcoder:
    return Transcoder(TranscoderInfo("", False, [], sizes.layers, features, sizes.width))


def test_weights_and_flops_of_a_transcoder():
    sizes, features, n = shape("llama"), 40, 16
    made = transcoder(sizes, features)
    assert flops.transcoder_weights(sizes, features) == sum(p.numel() for p in made.parameters())
    x = torch.randn(2, sizes.layers, n, sizes.width)
    with Counting() as counted:
        TranscoderObjective(made, torch.zeros(sizes.layers))(x[0], x[1], 1e-3).total.backward()
    estimated = flops.train_transcoder(sizes, features, T, packed=False)
    model = flops.layers_forward(sizes, (T + 1) / 2)
    assert counted.flops / n == pytest.approx(estimated.exact - model, rel=0.02)


class Traffic(TorchDispatchMode):
    """Adds up what operations read and write; views move nothing, and what is repeated is read once."""

    moved = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            for x in tree_leaves((args, kwargs or {}, out)):
                if isinstance(x, Tensor):
                    repeated = 0 in x.stride()
                    self.moved += x.untyped_storage().nbytes() if repeated else x.numel() * x.element_size()
        return out


@pytest.mark.parametrize("sample", [False, True])
def test_bytes_of_the_row_passes_are_counted(sample):
    heads, queries, keys = 2, 64, 512
    mask = torch.ones(1, 1, keys, keys, dtype=torch.bool)
    noise = noise_keys(0, (1, heads, keys), torch.device("cpu")) if sample else None
    spec = GateSpec(1.0, "sample" if sample else "deterministic", scale=1.0, mask=mask)
    block = RowBlock(torch.zeros(heads), spec, noise, kv_heads=heads, groups=1, offset=keys - queries)
    S, G = torch.randn(2, heads, queries, keys)
    with Traffic() as forward:
        lse, *_ = forward_rows(S.clone(), block)
    with Traffic() as backward:
        backward_rows(S, G, RowGradients(lse, lse, lse), block)
    counted = [traffic.moved / S.numel() for traffic in (forward, backward)]
    assert counted == pytest.approx(flops.ROW_BYTES[sample], rel=0.1)


def test_tokens_scale_linearly_and_adapters_cost_less():
    one, ten = (edgewise.plan("pocket", SparsifyConfig(tokens=x), MACHINE) for x in ("1M", "10M"))
    assert ten.stages[0].work.flops == pytest.approx(10 * one.stages[0].work.flops)
    assert ten.stages[0].memory == one.stages[0].memory
    full, lora = one.stages[:2]
    assert lora.work.flops < full.work.flops and lora.memory.total < full.memory.total
    for gpu in GPUS:
        assert gpu.seconds(ten.stages[0].work) == pytest.approx(10 * gpu.seconds(one.stages[0].work))


# ------------------------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize("attention_only", [False, True])
@pytest.mark.parametrize("lora", [None, 4])
@pytest.mark.parametrize("kind", BOTH)
def test_memory_of_what_is_trained_is_exact(kind, lora, attention_only):
    twin = edgewise.gate(host(kind))
    trained = trained_by(twin, lora, attention_only)
    learned = [p for p in trained.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned)
    for p in learned:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    moments = [
        x for state in optimizer.state.values() for x in state.values() if x.ndim
    ]  # and a number of steps
    moments_and_average = [*moments, *learned]
    estimated = memory.sparsify(shape(kind), Setup(T, 2, lora, attention_only))
    not_averaged = memory.sparsify(shape(kind), Setup(T, 2, lora, attention_only, RECIPES["small"]))
    assert estimated.weights == sum(4 * p.numel() for p in trained.parameters())
    biases = 0.04 if kind == "gpt2" and attention_only and lora is None else 0.0
    assert estimated.gradients == pytest.approx(sum(4 * p.numel() for p in learned), rel=biases, abs=0)
    for needs, expected in ((estimated, moments_and_average), (not_averaged, moments)):
        assert needs.optimizer == pytest.approx(sum(4 * x.numel() for x in expected), rel=biases, abs=0)
    assert estimated.dense == sum(4 * p.numel() for p in host(kind).parameters())


@pytest.mark.parametrize(("kind", "most"), [("gpt2", 1.1), ("llama", 1.01)])
def test_activations_are_those_that_autograd_keeps(kind, most):
    twin = edgewise.gate(host(kind)).train()
    edgewise.mode(twin, "sample")
    parameters = {p.untyped_storage().data_ptr() for p in twin.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in parameters:
            kept[x.untyped_storage().data_ptr()] = x
        return x

    ids = torch.randint(0, 97, (2, T))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        twin(input_ids=ids, use_cache=False).logits  # noqa: B018
    measured = sum(x.untyped_storage().nbytes() for x in kept.values())
    estimated = memory.sparsify(shape(kind), Setup(T, 2)).activations
    # in so narrow a model, norms' statistics and the noise's keys are a noticeable share
    small = 4 * 2 * T * 3 * (5 * 4 + 4) + 4 * 2 * T * 4 * 32
    assert measured - small <= estimated <= most * measured


def test_more_gpus_never_need_more_memory_each():
    for sizes in (shape("llama"), large(), large(num_hidden_layers=80, hidden_size=8192)):
        for checkpointing in (False, True):
            setup = Setup(1024, 1, bf16=True, sharded=True, checkpointing=checkpointing)
            totals = [memory.sparsify(sizes, replace(setup, n_gpus=2**g)).total for g in range(12)]
            assert totals == sorted(totals, reverse=True)


def test_both_models_are_divided():
    """But for what is gathered: embedding, unembedding and two layers of each."""
    sizes, setup = large(), Setup(1024, 1, sharded=True)
    whole = memory.sparsify(sizes, replace(setup, sharded=False))
    many = memory.sparsify(sizes, replace(setup, n_gpus=2**20))
    layers = 2 * sizes.linear / sizes.layers
    gathered = sizes.bytes_each * (sizes.unembedding * (1 if sizes.tied else 2) + layers)
    assert many.dense == pytest.approx(gathered, rel=1e-3) and many.dense < whole.dense / 4


def test_a_layout_is_the_smallest_that_fits():
    sizes, setup = large(), Setup(1024, 16)
    layout = smallest_layout(sizes, setup, 16, 1, H100)
    assert layout and layout.setup.sharded and layout.memory.total <= USABLE * H100.memory
    n_gpus = layout.setup.n_gpus
    assert layout.setup.micro_batch * n_gpus * layout.grad_accum == layout.batch_size == 16
    half = replace(layout.setup, n_gpus=n_gpus // 2, checkpointing=True, micro_batch=1)
    assert memory.sparsify(sizes, half).total > USABLE * H100.memory
    adapters = smallest_layout(sizes, replace(setup, lora=16), 16, 1, H100)
    assert adapters and adapters.setup.n_gpus == 1 and not adapters.setup.sharded


def test_a_run_that_fits_nowhere_comes_with_the_reason():
    sizes = large(hidden_size=8192, num_hidden_layers=80, intermediate_size=28_672)
    plan = edgewise.plan(sizes, SparsifyConfig(tokens="1M"), MACHINE)
    assert (
        plan.run.layout is None and "of it weights" in plan.run.obstacle
    )  # autocast's copies, which stay whole
    long = edgewise.plan(large(max_position_embeddings=131_072), SparsifyConfig(context=131_072), MACHINE)
    assert long.run.layout is None and "masks" in long.run.obstacle


# ---------------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def folder(tmp_path) -> Path:
    """A model without weights."""
    config = {**SEVEN_BILLION, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_folder_without_weights_is_enough(folder):
    code, out, err = command("plan", folder, "--context", 2048, "--attention-only")
    assert code == 0 and err == "", err
    assert "6,738,415,616 parameters" in out and f"{ASSUMED_TOKENS / 1e6:g}M tokens are an assumption" in out
    (line,) = [line for line in out.splitlines() if line.startswith("accelerate launch")]
    understood = launch_command_parser().parse_args(shlex.split(line)[2:])
    assert understood.use_fsdp and understood.module and understood.training_script == "edgewise"
    assert understood.fsdp_cpu_ram_efficient_loading == "false" and int(understood.num_processes) > 1
    assert "--context 2048" in line and "--attention-only" in line
    assert "This machine: about" in out and "GFLOP/s" in out


def test_the_plan_of_a_shipped_model():
    code, out, _ = command("plan", "pocket", "--tokens", "2M", "--lora", 8)
    assert code == 0 and "assumption" not in out and "sequences of 128 tokens" in out
    assert "edgewise sparsify pocket --tokens 2M --dtype bfloat16 --lora 8 --out ..." in out


def test_the_command_of_a_plan_starts_the_run_that_was_planned():
    flags = ["--context", "64", "--lora", "4", "--attention-only", "--recipe", "paper", "--batch-size", "8"]
    code, out, err = command("plan", "pocket", "--tokens", "2M", *flags)
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if line.strip().startswith("edgewise sparsify")]
    line = line[line.index("edgewise") :]
    words = shlex.split(line)
    for flag in [word for word in flags if word.startswith("--")]:
        assert flag in words, (flag, line)
        value = flags[flags.index(flag) + 1 :][:1]
        if value and not value[0].startswith("--"):
            assert words[words.index(flag) + 1] == value[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pocket-sparse"], "is a sparse twin already"),
        (["pocket", "--context", "4096"], "longer than the model's own context, 128"),
        (["nobody/nothing"], "the hub cannot be reached"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, arguments, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    code, _, err = command("plan", *arguments)
    assert code == 2 and message in said(err)


def test_a_mixture_of_experts_is_refused():
    small = MixtralConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
    with pytest.raises(edgewise.EdgewiseError, match="mixture of experts"):
        shape_of(small, "experts")


def test_this_machine_multiplies():
    assert measure_machine(0.01).rate > 1e8


def test_every_stage_costs_something():
    for stage in edgewise.plan("pocket-addition", machine=MACHINE).stages:
        assert stage.work.flops > 0 and stage.memory.total > 0 and stage.flops_per_token > 0
        assert all(getattr(stage.memory, field.name) >= 0 for field in fields(stage.memory))
