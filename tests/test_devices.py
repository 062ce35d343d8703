"""Every command's core on a pretended accelerator: no double precision there, no mixed devices, and few waits for it."""

import math

import pytest
import torch
from hosts import host, text
from pretend_device import NAME, PretendDevice
from traced import random_transcoder

import edgewise
from edgewise.core.devices import device_of, dtype_of, without_tf32
from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch
from edgewise.measure.loss import measure
from edgewise.measure.sinks import measure_sinks
from edgewise.models.find import find_model
from edgewise.models.load import load_files
from edgewise.models.loaded import load_models
from edgewise.tasks.measure import measure_tasks
from edgewise.training.transcoder.evaluation import evaluate_transcoder


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


def there(models: edgewise.LoadedModels) -> edgewise.LoadedModels:
    for model in models.models:
        on_device(model)
    return models


def test_analyses_of_prompts():
    with PretendDevice():
        models = there(load_models("pocket-sparse", device="cpu"))
        tasks = measure_tasks(models, ["copy"], n=2)
        flows = edgewise.collect_flow(models, edgewise.FlowConfig(('The opposite of " large " is "',)))
        repr([tasks, flows])
    assert math.isfinite(tasks.results["copy"].accuracy)


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
