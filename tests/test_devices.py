"""Every command's core on a pretended accelerator: no double precision there, no mixed devices, and few waits for it."""

import json
import math

import pytest
import torch
from accelerate.state import AcceleratorState
from hosts import VOCABULARY, host, text
from pretend_device import NAME, PretendDevice
from runs import CONTEXT, ROWS, mean_difference, save_host, save_text, settings, weights
from traced import random_transcoder

import edgewise
from edgewise.circuits.find import find_circuit
from edgewise.circuits.result import ModelCircuit
from edgewise.core.devices import DTYPES, device_of, dtype_of, free_memory, only_device, without_tf32
from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch
from edgewise.gating.edge_gate import gates_of
from edgewise.measure.loss import measure
from edgewise.measure.sinks import measure_sinks
from edgewise.models.find import find_model
from edgewise.models.load import load_files
from edgewise.models.loaded import load_models
from edgewise.tasks.measure import measure_tasks
from edgewise.tasks.pairs import Pair, Task
from edgewise.training.callbacks import Callback
from edgewise.training.sparsify.masks import TOP_K
from edgewise.training.transcoder.config import TranscoderConfig
from edgewise.training.transcoder.evaluation import evaluate_transcoder
from edgewise.training.transcoder.features import promoted_tokens, top_contexts
from edgewise.training.transcoder.train import train_transcoder
from edgewise.training.transcoder.transcoder import Transcoder


def twin(kind: str = "gpt2", **gate):
    return edgewise.gate(host(kind), edgewise.GateConfig("relative", b=1.0, **gate)).eval()


def batch(n: int = 4, context: int = 12) -> Batch:
    ids = text(n, context)
    return Batch(ids, ids.roll(-1, 1), None)


def on_device(model):
    return model.to(NAME)


# ------------------------------------------------------------------------------------------------------- the device itself


def test_the_device_refuses_what_real_ones_refuse():
    with PretendDevice() as device:
        x = torch.ones(3, device=NAME)
        assert x.device.type == NAME and (x + 1).tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(AssertionError, match="float64"):
            x.double()
        with pytest.raises(AssertionError, match="mixes devices"):
            _ = x + torch.ones(3)
        with pytest.raises(TypeError, match="numpy"):
            x.numpy()
        before = device.n_waits
        assert x.sum().item() == 3.0 and bool((x > 0).all()) and len((x > 0).nonzero()) == 3
        _ = x[x > 0], x.cpu()
        assert device.n_waits - before == 5


# ------------------------------------------------------------------------------------------------------------- measurements


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_forward_and_backward_are_those_of_the_cpu(kind):
    ids = text()
    model = twin(kind)
    with edgewise.tap(model) as activations:
        expected = model(input_ids=ids, use_cache=False).logits
    (expected.square().mean() + activations.expected_density.mean()).backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with PretendDevice():
        on_device(model)
        with edgewise.tap(model) as activations:
            logits = model(input_ids=ids.to(NAME), use_cache=False).logits
        torch.testing.assert_close(logits.cpu(), expected, atol=1e-4, rtol=1e-4)
        (logits.square().mean() + activations.expected_density.mean()).backward()
        there = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
    for x, y in zip(there, gradients, strict=True):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-3)


def test_loss_density_and_sinks():
    model = twin()
    expected, sinks = measure(model, batch()), measure_sinks(model, batch())
    with PretendDevice() as device:
        on_device(model)
        device.waits.clear()
        measured = measure(model, batch(), batch_size=1)
        waits = device.own_waits  # transformers waits in each of the four forward passes
        there = measure_sinks(model, batch())
    assert measured.ce == pytest.approx(expected.ce, abs=1e-5)
    assert torch.equal(measured.density_per_head, expected.density_per_head)
    torch.testing.assert_close(there.first, sinks.first, atol=1e-5, rtol=1e-4)
    assert waits <= 4 * 3, device.waits


def test_transcoders():
    model = twin()
    width = model.config.hidden_size
    transcoder = random_transcoder(model.config.num_hidden_layers, width)
    expected = evaluate_transcoder(model, transcoder, batch())
    with PretendDevice():
        on_device(model)
        on_device(transcoder)
        measured = evaluate_transcoder(model, transcoder, batch())
    assert measured.loss == pytest.approx(expected.loss, abs=1e-5)
    assert measured.explained_variance == pytest.approx(expected.explained_variance, rel=1e-3, abs=1e-4)


# ------------------------------------------------------------------------------------------------------------------ analyses


def test_compaction_folds_null_values():
    model = twin("gpt2", null_value=True)
    with torch.no_grad():
        for gate in gates_of(model):
            gate.b[0] = -1.0
            assert gate.null_value is not None
            gate.null_value.normal_()
    ids = text()
    with torch.no_grad():
        expected = model(input_ids=ids).logits
    with PretendDevice():
        small = edgewise.compact(on_device(model))
        logits = small(input_ids=ids.to(NAME)).logits.cpu()
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", list(TOP_K))
def test_masks_of_largest_weights(kind):
    """Controls of post-training; of equal weights the first ones."""
    weights = torch.rand(2, 4, 6, 6).mul(4).round().div(4).tril()
    mask = TOP_K[kind](torch.full((1, 4), 1.5))
    expected = mask(0, weights)
    assert 0 < expected.sum() < (weights > 0).sum()
    with PretendDevice():
        assert torch.equal(mask(0, weights.to(NAME)).cpu(), expected)


PROMPT = 'The opposite of " large " is "'


def test_analyses_of_prompts():
    """Everything that reads a prompt, on the device that `auto` finds."""
    names = ("pocket", "pocket-sparse")
    maps = edgewise.MapsConfig(prompt=PROMPT, heads="L5H1")
    changes = edgewise.InterventionConfig(prompt=PROMPT, heads=("L4H1",), features=("L0/118@5",))
    on_cpu = load_models(names, device="cpu")
    expected = edgewise.collect_maps(on_cpu, maps)
    effect = edgewise.intervene("pocket-sparse", changes).measured
    with PretendDevice():
        models = load_models(names)
        assert all(model.device.type == NAME for model in models.models)
        tasks = measure_tasks("pocket-sparse", ["copy"], n=2)
        flows = edgewise.collect_flow(models, edgewise.FlowConfig((PROMPT,)))
        panels = edgewise.collect_maps(models, maps).panels
        assert edgewise.intervene("pocket-sparse", changes).measured == pytest.approx(effect, abs=1e-3)
        small = edgewise.compact(models.models[1])
        repr([tasks, flows])
    assert math.isfinite(tasks.results["copy"].accuracy)
    for panel, of_cpu in zip(panels, expected.panels, strict=True):
        assert abs(panel.maps - of_cpu.maps).max() < 1e-5
    assert small.num_parameters() < models.models[1].num_parameters()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_a_comparison_on_a_device_and_in_a_precision(dtype, tmp_path):
    """Every analysis of prompts and text through the comparison object, a dense model beside its twin."""
    folders = [save_host(tmp_path / "dense", "llama"), tmp_path / "twin"]
    sparse = edgewise.gate(edgewise.load(folders[0]), edgewise.GateConfig("relative", b=2.0))
    edgewise.save(sparse, folders[1], edgewise.load_tokenizer(folders[0]))
    lines = save_text(tmp_path / "text.txt", rows=20)
    transcoders = [random_transcoder(2, 32) for _ in folders]

    def analyse(device: str) -> edgewise.Comparison:
        pair = edgewise.compare(*map(str, folders), device=device, dtype=dtype, quiet=True)
        assert all((m.device.type, m.dtype) == (device, getattr(torch, dtype)) for m in pair.models.models)
        pair.maps(prompt=PROMPT, heads="L1H1")
        pair.flow(PROMPT)
        pair.trace(PROMPT, transcoders=transcoders, ablations=4)  # pyright: ignore
        pair.evaluate([str(lines)], tokens=256, sinks=True)
        return pair

    with PretendDevice():
        there = analyse(NAME).results
    here = analyse("cpu").results
    tolerance = 1e-3 if dtype == "float32" else 5e-2
    for name in map(str, folders):
        found, expected = there["evaluation-1"][name], here["evaluation-1"][name]  # pyright: ignore
        assert found.ce == pytest.approx(expected.ce, abs=tolerance)
        assert found.sinks.first.shape == expected.sinks.first.shape
    for found, expected in zip(there["trace-1"], here["trace-1"], strict=True):  # pyright: ignore
        assert abs(found.maps - expected.maps).max() < tolerance
        assert found.metrics["closure"] < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_circuit_in_half_precision(dtype):
    model = twin("llama").to(dtype)
    task = shown_task(model, n=4)
    with PretendDevice():
        found = circuit(on_device(model), task, edges=False)
    assert not found.warnings and found.heads is not None


def shown_task(model, n: int = 8, length: int = 8) -> Task:
    """Random pairs, and answers that make the model prefer the clean prompt's."""
    clean, corrupt = text(n, length), text(n, length)
    corrupt[:, 3] = (corrupt[:, 3] + 1) % VOCABULARY
    corrupt[:, -1] = clean[:, -1]
    with torch.no_grad():
        difference = (model(input_ids=clean).logits - model(input_ids=corrupt).logits)[:, -1]
    right, wrong = difference.argmax(-1).tolist(), difference.argmin(-1).tolist()
    rows = zip(clean.tolist(), corrupt.tolist(), right, wrong, strict=True)
    pairs = [
        Pair("", "", ("",), ("",), tuple(a), tuple(b), (r,), (w,), {"end": length - 1}) for a, b, r, w in rows
    ]
    return Task("random", "logit difference", tuple(pairs), {}, sizes=(n // 2, n // 2, 0) if n > 4 else None)


def circuit(model, task: Task, **options) -> ModelCircuit:
    config = edgewise.CircuitConfig(prompts=8, scrutiny=False, ig_steps=1, **options)
    return find_circuit(model, task, config)


def test_circuits_of_heads():
    """Heads, ranked and minimal, and token edges are those that the CPU finds."""
    model = twin("llama")
    task = shown_task(model, n=4)
    expected = circuit(model, task, edges=False)
    with PretendDevice():
        found = circuit(on_device(model), task, edges=False)
    assert not found.warnings and expected.heads is not None and found.heads is not None
    assert found.heads.minimal is not None and found.token_edges is not None
    assert found.heads.minimal.components == expected.heads.minimal.components  # pyright: ignore
    assert found.token_edges == expected.token_edges


@pytest.mark.slow
def test_circuits_of_edges():
    """Ranked and minimal, with the scrutiny of both searches."""
    model = twin("llama")
    task = shown_task(model, n=8)
    expected = circuit(model, task, minimal=False)
    config = edgewise.CircuitConfig(prompts=8, minimal_edges=True, ig_steps=1)
    with PretendDevice():
        found = find_circuit(on_device(model), task, config)
    assert not found.warnings and found.edges is not None and found.edges.minimal is not None
    assert found.edges.prefix.needed == pytest.approx(expected.edges.prefix.needed, abs=2)  # pyright: ignore


def traceable(place) -> tuple[edgewise.LoadedModels, Transcoder]:
    """A small model and a random transcoder, on the CPU."""
    models = load_models(save_host(place / "model", "llama"), device="cpu")
    (model,) = models.models
    return models, random_transcoder(model.config.num_hidden_layers, model.config.hidden_size)


def test_a_trace(tmp_path):
    """Links, head shares and all effects are those of the CPU; a transcoder on the CPU follows the model."""
    models, transcoder = traceable(tmp_path)
    config = edgewise.TraceConfig(prompt=PROMPT)
    (expected,) = edgewise.trace(models, config, transcoders=transcoder)
    with PretendDevice():
        on_device(models.models[0])
        (found,) = edgewise.trace(models, config, transcoders=transcoder)
    assert transcoder.encoder.device.type == "cpu"
    assert not found.warnings and [node.id for node in found.nodes] == [node.id for node in expected.nodes]
    assert abs(found.head_shares - expected.head_shares).max() < 1e-4
    assert abs(found.cells - expected.cells).max() < 1e-5
    for ablated, of_cpu in zip(found.interventions, expected.interventions, strict=True):
        for part in ("predicted", "gradient", "replaced", "frozen", "actual", "values", "attention", "norms"):
            assert getattr(ablated, part) == pytest.approx(getattr(of_cpu, part), abs=1e-4), (ablated, part)
    assert found.metrics["effect_closure"] < 1e-4


def test_an_intervention(tmp_path):
    models, transcoder = traceable(tmp_path)
    changes = edgewise.InterventionConfig(prompt=PROMPT, heads=("L1H1",), features=("L0/3",), scale=2.0)
    expected = edgewise.intervene(models, changes, transcoder=transcoder)
    with PretendDevice():
        on_device(models.models[0])
        found = edgewise.intervene(models, changes, transcoder=transcoder)
    assert found.measured == pytest.approx(expected.measured, abs=1e-4)
    assert found.predicted == pytest.approx(expected.predicted, abs=1e-4)


@pytest.mark.slow
def test_a_trace_of_pocket_sparse():
    """With contexts of features, from its own text."""
    config = edgewise.TraceConfig(prompt=PROMPT)
    (expected,) = edgewise.trace(load_models("pocket-sparse", device="cpu"), config)
    with PretendDevice():
        (found,) = edgewise.trace("pocket-sparse", config)
    assert [node.id for node in found.nodes] == [node.id for node in expected.nodes]
    assert found.contexts.keys() == expected.contexts.keys()


def test_half_precision_is_traced_in_float32(tmp_path):
    models, transcoder = traceable(tmp_path)
    half = models.models[0].to(torch.bfloat16)  # pyright: ignore
    (traced,) = edgewise.trace(models, edgewise.TraceConfig(prompt=PROMPT), transcoders=transcoder)
    assert traced.metrics["closure"] < 1e-4 and half.dtype == torch.bfloat16


def test_features(tmp_path):
    models, transcoder = traceable(tmp_path)
    batch = Batch(text(4, 12), text(4, 12), None)
    wanted = [(0, 1), (1, 3)]
    expected = top_contexts(models.models[0], transcoder, batch, wanted)
    promoted = promoted_tokens(models.models[0], transcoder, 0, 1)
    with PretendDevice():
        model = on_device(models.models[0])
        found = top_contexts(model, on_device(transcoder), batch, wanted)
        assert promoted_tokens(model, transcoder, 0, 1).raised == [
            (token, pytest.approx(value, abs=1e-4)) for token, value in promoted.raised
        ]
    for feature in wanted:
        assert [context.ids for context in found[feature]] == [context.ids for context in expected[feature]]


# ------------------------------------------------------------------------------------------------------------------ training


class Waits(Callback):
    """Host synchronisations of each step, all that happens in it counted: ours and those of transformers."""

    def __init__(self, device: PretendDevice):
        self.device, self.steps = device, []

    def on_step_begin(self, trainer) -> None:
        self.before = self.device.waits.copy()

    def on_step_end(self, trainer, metrics) -> None:
        self.steps.append(self.device.waits - self.before)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with packed text; accelerate forgets the device afterwards."""
    lines = save_text(tmp_path / "text.txt", rows=60).read_text().splitlines()
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines))
    AcceleratorState._reset_state(True)
    yield tmp_path
    AcceleratorState._reset_state(True)


SPARSIFY = {
    "joint": ("llama", {}),
    "layer-wise warm-up": (
        "gpt2",
        {"layerwise_warmup": str(8 * ROWS * CONTEXT), "grad_accum": 2, "steps": 10},
    ),
    "sampled gates": ("llama", {"recipe": "paper", "grad_accum": 2}),
    "adapters": ("llama", {"lora": 2}),
    "closed heads": ("llama", {"freeze_closed": True, "b": -7.0}),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k == "joint" else pytest.mark.slow) for k in SPARSIFY]
)
def test_sparsify_waits_once_a_step(kind, place):
    """From the model's folder to the saved twin: the CPU's twin, and one wait a step, for the metrics."""
    name, options = SPARSIFY[kind]
    save_host(place / "model", name)
    results = []
    with PretendDevice() as device:
        waits = Waits(device)
        chosen = settings(place / "there", **{"steps": 4, "device": NAME, "save_minutes": 60, **options})
        results.append(edgewise.sparsify(place / "model", place / "text.jsonl", chosen, callbacks=[waits]))
        assert device.synchronized > 0  # before the clock is read
    assert [step.total() for step in waits.steps] == [1] * len(waits.steps), waits.steps
    AcceleratorState._reset_state(True)
    chosen = settings(place / "here", **{"steps": 4, "device": "cpu", "save_minutes": 60, **options})
    results.append(edgewise.sparsify(place / "model", place / "text.jsonl", chosen))
    # not the largest difference: Adam moves a weight whose gradient is 0 but for rounding by a learning rate, 0.001
    assert mean_difference(weights(place / "there"), weights(place / "here")) < 5e-5
    assert results[0].summary["sparse_ce"] == pytest.approx(results[1].summary["sparse_ce"], abs=1e-3)


def test_train_transcoder_waits_once_a_step(place):
    """But for the first of a buffer, in which the model reads text."""
    save_host(place / "model", "gpt2")
    sizes = {"features": 16, "batch_size": ROWS, "tokens": str(6 * ROWS * CONTEXT), "save_minutes": 60}
    found = []
    for where in (NAME, "cpu"):
        config = TranscoderConfig(out=place / where, device=where, **sizes)
        with PretendDevice() as device:
            waits = Waits(device)
            found.append(train_transcoder(place / "model", place / "text.jsonl", config, callbacks=[waits]))
        if where == NAME:
            assert [step.total() for step in waits.steps[1:]] == [1] * 5, waits.steps
            assert device.synchronized > 0
        AcceleratorState._reset_state(True)
    there, here = (result.evaluation for result in found)
    assert there.loss == pytest.approx(here.loss, abs=1e-3)


# -------------------------------------------------------------------------------------------------------------------- names


def test_devices_and_precisions_by_name():
    assert device_of("cpu") == torch.device("cpu") and device_of(None).type == "cpu"
    assert device_of("auto").type in ("cpu", "cuda", "mps", "xpu")
    assert dtype_of("bfloat16") == torch.bfloat16 and dtype_of("auto") is None
    with pytest.raises(EdgewiseError, match="is no device"):
        device_of("gpu")
    with pytest.raises(EdgewiseError, match="one of auto, float32"):
        dtype_of("int8")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is one")
def test_a_device_that_is_not_there():
    with pytest.raises(EdgewiseError, match="this torch finds only a CPU"):
        edgewise.load("pocket", device="cuda:1")


def test_a_model_is_split_where_transformers_decides():
    model = load_files(find_model("pocket"), device_map="auto").eval()
    whole = edgewise.load("pocket", dtype="bfloat16")
    assert whole.dtype == torch.bfloat16 and model.dtype == torch.float32
    assert math.isfinite(measure(model, batch()).ce)


def test_tf32_is_restored():
    before = torch.backends.cuda.matmul.allow_tf32
    with without_tf32():
        assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32 == before


def test_a_model_on_several_devices_is_refused_where_it_must_be_whole():
    model = host("gpt2")
    assert only_device(model, "a trace") == torch.device("cpu")
    model.lm_head = torch.nn.Linear(2, 2, device="meta")
    with pytest.raises(EdgewiseError, match="a trace needs the whole model on one device"):
        only_device(model, "a trace")


def test_free_memory_of_the_machine_and_of_a_device():
    assert free_memory(torch.device("cpu")) > 1 << 20
    with PretendDevice():
        assert free_memory(torch.device(NAME)) > 1 << 20
