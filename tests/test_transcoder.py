"""Transcoders: their equations, their files, their training, and a model whose MLPs they replace."""

import json
import signal
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch
from hosts import host, text, with_null_value
from runs import CONTEXT, ROWS, BeforeStep, interrupt_at, save_host, save_text
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import edgewise
from edgewise.cli.tables.features import print_features
from edgewise.core.errors import EdgewiseError
from edgewise.data import IGNORE, Batch, embedded_data
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.install import install
from edgewise.gating.tap import tap
from edgewise.measure.forward import run_model
from edgewise.models.architecture import architecture_of, decoder_layers
from edgewise.models.hooks import replace_output
from edgewise.training.clock import RunInterrupted
from edgewise.training.transcoder.activations import error_costs, mlp_activations, replaced_mlps
from edgewise.training.transcoder.config import FeaturesConfig, TranscoderConfig
from edgewise.training.transcoder.describe import describe_features
from edgewise.training.transcoder.disturbed import disturbed_heads
from edgewise.training.transcoder.evaluation import Fit, evaluate_transcoder
from edgewise.training.transcoder.features import promoted_tokens, top_contexts
from edgewise.training.transcoder.objective import (
    DEAD_COEFFICIENT,
    OUTPUT_WEIGHT,
    TranscoderObjective,
    layer_weights,
)
from edgewise.training.transcoder.run import calibrate
from edgewise.training.transcoder.shuffle import BUFFER_STEPS, ShuffledActivations, activations
from edgewise.training.transcoder.store import info_of, load_transcoder, save_transcoder
from edgewise.training.transcoder.train import train_transcoder
from edgewise.training.transcoder.transcoder import MASSIVE, STEEPNESS, JumpReLU, Transcoder, massive_limits

KINDS = ["gpt2", "llama", "gpt_neox"]
L, F, D = 3, 10, 32


def model_of(kind: str, gated: bool = False) -> Any:
    model: Any = host(kind)
    return (edgewise.gate(model, edgewise.GateConfig("relative", b=2.0)) if gated else install(model)).eval()


def random_transcoder(model, features: int = F) -> Transcoder:
    """Every number of it is something else than at the start."""
    transcoder = Transcoder(info_of(model, "tiny", features), seed=1)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in transcoder.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        transcoder.input_scale.uniform_(0.5, 2)
        transcoder.output_scale.uniform_(0.5, 2)
    return transcoder


def batch_of(rows: int = 3) -> Batch:
    ids = text(rows)
    return Batch(ids, nn.functional.pad(ids[:, 1:], (0, 1), value=IGNORE), None)


def by_hand(transcoder: Transcoder, x: Tensor) -> tuple[Tensor, Tensor]:
    """Activations and outputs, one number after the other."""
    n = x.shape[1]
    a = torch.zeros(L, n, F)
    y = transcoder.decoder_bias.detach()[:, None].repeat(1, n, 1)
    for l in range(L):
        for token in range(n):
            for i in range(F):
                scaled = x[l, token] * transcoder.input_scale[l]
                h = transcoder.encoder[l, i] @ scaled + transcoder.encoder_bias[l, i]
                if h > transcoder.log_threshold[l, i].exp():
                    a[l, token, i] = h
                    for m in range(l, L):
                        y[m, token] += h * transcoder.decoders[l][i, (m - l) * D : (m - l + 1) * D]
    return a, y * transcoder.output_scale[:, None, None]


# --------------------------------------------------------------------------------------------------- the equations


@torch.no_grad()
def test_encoding_and_decoding_are_the_equations_written_out():
    transcoder, x = random_transcoder(model_of("gpt2")), torch.randn(L, 5, D)
    a, y = by_hand(transcoder, x)
    assert 0 < (a > 0).float().mean() < 1
    torch.testing.assert_close(transcoder.encode(x), a)
    torch.testing.assert_close(transcoder.decode(a), y)
    torch.testing.assert_close(transcoder.threshold, transcoder.log_threshold.exp())


@torch.no_grad()
def test_reads_and_writes_are_in_the_models_units():
    transcoder, x = random_transcoder(model_of("gpt2")), torch.randn(L, 5, D)
    h, a = transcoder.preactivations(x), transcoder.encode(x)
    y = transcoder.output_bias[:, None].repeat(1, 5, 1)
    for l in range(L):
        encoder, bias = transcoder.reads(l)
        torch.testing.assert_close(x[l] @ encoder.T + bias, h[l])
        assert transcoder.writes(l).shape == (F, L - l, D)
        y[l:] += torch.einsum("nf,fmd->mnd", a[l], transcoder.writes(l))
    torch.testing.assert_close(y, transcoder.decode(a))


def test_jumprelu_learns_its_threshold_through_a_rectangle():
    h = torch.tensor([[[-1.0], [0.1], [0.29], [0.31], [0.7], [0.9]]], requires_grad=True)
    theta = torch.tensor([[0.3]], requires_grad=True)
    a = JumpReLU.apply(h, theta)
    assert a.flatten().tolist() == pytest.approx([0, 0, 0, 0.31, 0.7, 0.9])
    g = torch.tensor([1.0, 2, 3, 4, 5, 6]).view(1, 6, 1)
    a.backward(g)
    assert h.grad is not None and theta.grad is not None
    assert h.grad.flatten().tolist() == [0, 0, 0, 4, 5, 6]
    # -theta / width, where |h - theta| < 1/2: all but the first and the last
    assert theta.grad.item() == pytest.approx(-0.3 * (2 + 3 + 4 + 5))


def test_the_loss_is_the_equations_written_out():
    transcoder = random_transcoder(model_of("gpt2"))
    x, y = torch.randn(L, 4, D), torch.randn(L, 4, D)
    loss = TranscoderObjective(transcoder, torch.tensor([0.0, 0.5, 1.0]))(x, y, 0.1)
    with torch.no_grad():
        a, given = by_hand(transcoder, x)
        h, total = transcoder.preactivations(x), torch.zeros(())
        for m in range(L):
            total += (1 + OUTPUT_WEIGHT * m) * (  # the median cost is 0.5
                ((y[m] - given[m]) / transcoder.output_scale[m]) ** 2
            ).mean()
            norms = transcoder.decoders[m].norm(dim=1)
            total += 0.1 * torch.tanh(STEEPNESS * a[m] * norms).sum() / 4
            total += DEAD_COEFFICIENT * (torch.relu(transcoder.threshold[m] - h[m]) * norms).sum() / 4
    assert loss.total.item() == pytest.approx(total.item(), rel=1e-5)
    assert loss.l0.tolist() == pytest.approx(((a > 0).sum((1, 2)) / 4).tolist())
    loss.total.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in transcoder.parameters())


# ----------------------------------------------------------------------------------------- a model and its replacement


@pytest.mark.parametrize("gated", [False, True], ids=["dense", "gated"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_replaced_model_runs_on_its_own_stream(kind, gated):
    """Against hooks that replace one MLP after the other, each from what enters it in the model replaced so far."""
    model, batch = model_of(kind, gated), batch_of()
    transcoder = random_transcoder(model)
    with replaced_mlps(model, transcoder):
        logits = run_model(model, batch)
    outputs: list[Tensor] = []
    for layer in range(L):  # later MLPs do not matter to what enters this one
        with giving(model, outputs):
            x, _ = mlp_activations(model, batch)
        outputs.append(transcoder.decode(transcoder.encode(x))[layer].view(3, 24, D))
    with giving(model, outputs):
        expected = run_model(model, batch)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def giving(model, outputs: list[Tensor]) -> ExitStack:
    """The first MLPs give what they are told."""
    stack = ExitStack()
    for layer, y in zip(architecture_of(model).layers, outputs, strict=False):
        stack.enter_context(replace_output(layer.mlp_out, lambda _, y=y: y))
    return stack


class Rectified(nn.Module):
    """An MLP that a transcoder can say exactly: relu(x W + b) V + c."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, F), nn.Linear(F, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


def exactly_explained(kind: str = "llama"):
    """A model with such MLPs, and the transcoder that says what they do."""
    model = model_of(kind)
    torch.manual_seed(5)
    for layer in decoder_layers(model):
        layer.mlp = Rectified()
    transcoder = Transcoder(info_of(model, "tiny", F))
    with torch.no_grad():
        transcoder.input_scale.uniform_(0.5, 2)
        transcoder.output_scale.uniform_(0.5, 2)
        transcoder.log_threshold.fill_(-20)
        mlp: Any
        for l, layer in enumerate(architecture_of(model).layers):
            mlp = layer.mlp_out
            transcoder.encoder[l] = mlp.up.weight / transcoder.input_scale[l]
            transcoder.encoder_bias[l] = mlp.up.bias
            transcoder.decoders[l].zero_()
            transcoder.decoders[l][:, :D] = mlp.down.weight.T / transcoder.output_scale[l]
            transcoder.decoder_bias[l] = mlp.down.bias / transcoder.output_scale[l]
    return model, transcoder


def test_a_perfect_transcoder_explains_everything():
    model, transcoder = exactly_explained()
    measured = evaluate_transcoder(model, transcoder, batch_of())
    assert measured.explained_variance == pytest.approx([1.0] * L, abs=1e-6)
    assert measured.difference == pytest.approx(0, abs=1e-5)
    assert measured.tokens == 3 * 23
    a = transcoder.encode(mlp_activations(model, batch_of())[0])
    assert measured.l0 == pytest.approx((a > 0).sum((1, 2)).div(3 * 24).tolist())
    assert measured.dead == pytest.approx((~(a > 0).any(1)).float().mean(1).tolist())


def test_the_mean_explains_nothing():
    model, transcoder = exactly_explained()
    _, y = mlp_activations(model, batch_of())
    with torch.no_grad():
        transcoder.log_threshold.fill_(20)
        transcoder.decoder_bias.copy_(y.mean(1) / transcoder.output_scale[:, None])
    measured = evaluate_transcoder(model, transcoder, batch_of())
    assert measured.explained_variance == pytest.approx([0.0] * L, abs=1e-6)
    assert measured.l0 == [0.0] * L and measured.dead == [1.0] * L


# ------------------------------------------------------------------------------------------------- massive outputs


def with_one_massive(y: Tensor, layer: int = 1, token: int = 4) -> Tensor:
    y = y.clone()
    y[layer, token] = 1000 * y[layer].norm(dim=1).median() / D**0.5
    return y


@torch.no_grad()
def test_one_massive_output_changes_nothing_for_the_others():
    model = model_of("llama")
    x, y = mlp_activations(model, batch_of())
    plain, spoilt, other = (Transcoder(info_of(model, "tiny", F)) for _ in range(3))
    calibrate(plain, x, y)
    calibrate(spoilt, x, with_one_massive(y))
    assert not plain.config.massive and len(spoilt.config.massive) == L
    kept = torch.arange(y.shape[1]) != 4
    calibrate(other, x[:, kept], y[:, kept])
    for name in ("output_scale", "decoder_bias"):
        ours, expected = getattr(spoilt, name), getattr(other, name)
        torch.testing.assert_close(ours[1], expected[1])  # as if the token had not been there
        torch.testing.assert_close(ours[[0, 2]], getattr(plain, name)[[0, 2]])  # in its layer only
    losses, fits = [], []
    for outputs in (y, with_one_massive(y), 7 * with_one_massive(y) - 6 * y):
        losses.append(TranscoderObjective(spoilt, torch.zeros(L))(x, outputs, 0.0).mse)
        fits.append(Fit(spoilt))
        fits[-1].add(x, outputs)
    torch.testing.assert_close(losses[1], losses[2])  # however large it is
    torch.testing.assert_close(fits[1].explained_variance, fits[2].explained_variance, rtol=1e-5, atol=1e-6)
    assert torch.equal(losses[0][[0, 2]], losses[1][[0, 2]])
    assert fits[0].massive == 0 and fits[1].massive == pytest.approx(1 / (L * y.shape[1]))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_massive_outputs_are_not_replaced(kind):
    model, batch = model_of(kind), batch_of()
    transcoder, own = random_transcoder(model), run_model(model, batch)
    transcoder.config = replace(transcoder.config, massive=[0.0] * L)  # all of them
    with replaced_mlps(model, transcoder):
        torch.testing.assert_close(run_model(model, batch), own)
    measured = evaluate_transcoder(model, transcoder, batch)
    assert measured.massive == 1 and measured.difference == pytest.approx(0, abs=1e-6)


def test_limits_of_massive_outputs_are_saved_and_passed_on(tiny, tmp_path):
    model = edgewise.load(tiny[0])
    _, y = mlp_activations(model, batch_of())
    limits = massive_limits(y) * 1.2 / MASSIVE  # a random model has no outliers
    info = replace(info_of(model, tiny[0], 4 * D), massive=limits.tolist())
    save_transcoder(Transcoder(info), tmp_path / "first")
    assert load_transcoder(tmp_path / "first").config.massive == info.massive
    second = train_transcoder(
        *tiny, settings(tmp_path / "second", steps=4, start_from=tmp_path / "first", features=4 * D)
    )
    assert second.transcoder.config.massive == info.massive and 0 < second.evaluation.massive < 1


@torch.no_grad()
def test_documents_of_a_row_stay_apart():
    model, ids = model_of("llama"), text(1)
    positions = torch.cat([torch.arange(10), torch.arange(14)])[None]
    x, y = mlp_activations(model, Batch(ids, ids, positions))
    parts = [mlp_activations(model, Batch(part, part, None)) for part in (ids[:, :10], ids[:, 10:])]
    torch.testing.assert_close(x, torch.cat([part[0] for part in parts], 1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(y, torch.cat([part[1] for part in parts], 1), rtol=1e-4, atol=1e-4)


# --------------------------------------------------------------------------------------------------------- the files


def test_a_saved_transcoder_is_the_same(tmp_path):
    model = model_of("gpt2")
    transcoder = random_transcoder(model)
    loaded = load_transcoder(save_transcoder(transcoder, tmp_path / "a"), model)
    assert loaded.config == transcoder.config
    assert all(
        torch.equal(a, b)
        for a, b in zip(loaded.state_dict().values(), transcoder.state_dict().values(), strict=True)
    )
    save_transcoder(transcoder, tmp_path / "b", "float16")
    small, x = load_transcoder(tmp_path / "b", model), torch.randn(L, 5, D)
    assert small.encoder.dtype == torch.float32
    torch.testing.assert_close(small.preactivations(x), transcoder.preactivations(x), rtol=0, atol=2e-2)
    sizes = [(tmp_path / name / "transcoder.safetensors").stat().st_size for name in "ab"]
    assert sizes[1] < 0.6 * sizes[0]


def test_another_model_is_refused(tmp_path):
    model = model_of("gpt2")
    folder = save_transcoder(random_transcoder(model), tmp_path)
    load_transcoder(folder, model.to(torch.bfloat16))  # the same, rounded
    model = model_of("gpt2")
    with pytest.raises(EdgewiseError, match="dense model, tiny; this one is sparse"):
        load_transcoder(folder, model_of("gpt2", gated=True))
    with torch.no_grad():  # hardly trained
        mlp: Any = architecture_of(model).layers[1].mlp_out
        weight = mlp.c_fc.weight
        weight += 0.05 * weight.std() * torch.randn_like(weight)
    with pytest.raises(EdgewiseError, match="not those of this model"):
        load_transcoder(folder, model)
    with pytest.raises(EdgewiseError, match="3 layers of width 32; this model has 6 of width 128"):
        load_transcoder(folder, edgewise.load("pocket"))
    twin = model_of("gpt2", gated=True)
    save_transcoder(random_transcoder(twin), folder)
    load_transcoder(folder, twin)
    with edgewise.mode(twin, "dense"), pytest.raises(EdgewiseError, match="this one is dense"):
        load_transcoder(folder, twin)


def test_pocket_and_its_twin_are_told_apart(tmp_path):
    dense, twin = edgewise.load("pocket"), edgewise.load("pocket-sparse")
    info = replace(info_of(dense, "pocket", 4), gated=True)
    save_transcoder(Transcoder(info), tmp_path)
    with pytest.raises(EdgewiseError, match="not those of this model"):
        load_transcoder(tmp_path, twin)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "holds no transcoder"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "config.json").write_text('{"model_type": "gpt2"}'), "something else"),
        (lambda f: (f / "transcoder.safetensors").unlink(), "is missing"),
        (lambda f: (f / "transcoder.safetensors").write_bytes(b"x" * 99), "truncated or damaged"),
        (lambda f: rewrite(f, format=99), "newer edgewise"),
        (lambda f: rewrite(f, features=11), "other sizes"),
        (lambda f: rewrite(f, features="many"), "describes no transcoder"),
        (lambda f: spoil(f), "not finite"),
    ],
)
def test_damaged_folders_are_refused_in_one_line(tmp_path, damage, message):
    folder = save_transcoder(random_transcoder(model_of("gpt2")), tmp_path)
    damage(folder)
    with pytest.raises(EdgewiseError, match=message) as error:
        load_transcoder(folder)
    assert "\n" not in str(error.value)


def rewrite(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def spoil(folder):
    state = load_file(folder / "transcoder.safetensors")
    state["encoder"][0, 0, 0] = float("nan")
    save_file(state, folder / "transcoder.safetensors")


# ------------------------------------------------------------------------------------------------------------- training


def settings(out, steps: int = 40, **others) -> TranscoderConfig:
    options = {"batch_size": ROWS, "tokens": str(steps * ROWS * CONTEXT), **others}
    return TranscoderConfig(out=out, **options)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return str(save_host(folder / "model")), str(save_text(folder / "text.txt"))


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "out"
    return train_transcoder(*tiny, settings(out))


def test_training_explains_and_leaves_everything_in_its_folder(trained, tiny):
    measured, folder = trained.evaluation, trained.folder
    assert measured.mean_explained_variance > 0.3
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["explained_variance"] == measured.explained_variance
    assert summary["tokens"] == 40 * ROWS * CONTEXT and summary["features"] == 4 * D
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "mse" in line]
    assert [line["step"] for line in steps] == list(range(1, 41))
    assert steps[-1]["mse"] < 0.8 * steps[0]["mse"]
    loaded = load_transcoder(folder, edgewise.load(tiny[0]))
    assert loaded.config.evaluation["loss"] == measured.loss
    assert loaded.config.training["steps"] == 40


@pytest.mark.parametrize("at", [5, BUFFER_STEPS - 2])
def test_an_interrupted_run_goes_on_bit_by_bit(trained, tiny, tmp_path, at):
    with pytest.raises(RunInterrupted, match=f"step {at + 2} of 40 and saved; go on with `resume=True`"):
        train_transcoder(*tiny, settings(tmp_path), callbacks=[interrupt_at(at, signal.SIGTERM)])
    resumed = train_transcoder(*tiny, TranscoderConfig(out=tmp_path, resume=True))
    again = zip(
        resumed.transcoder.state_dict().values(), trained.transcoder.state_dict().values(), strict=True
    )
    assert all(torch.equal(a, b) for a, b in again)
    assert resumed.evaluation == trained.evaluation


def test_a_run_that_breaks_says_where_to_go_on(tiny, tmp_path):
    def spoil_weights(run):
        run.transcoder.encoder.data.fill_(float("nan"))

    with pytest.raises(
        EdgewiseError, match=r"stopped at step 3: .*step-000000003: go on from it with `resume=True` `lr="
    ):
        train_transcoder(*tiny, settings(tmp_path, save_minutes=0), callbacks=[BeforeStep(3, spoil_weights)])


def test_a_run_begins_from_another_transcoder(trained, tiny, tmp_path):
    begun = train_transcoder(*tiny, settings(tmp_path / "a", steps=1, start_from=trained.folder, lr=1e-9))
    torch.testing.assert_close(begun.transcoder.encoder, trained.transcoder.encoder)
    with pytest.raises(EdgewiseError, match="has 2 layers of 128 features"):
        train_transcoder(*tiny, settings(tmp_path / "b", start_from=trained.folder, features=7))


def test_a_gated_twin_is_trained_like_a_dense_model(tmp_path):
    config = TranscoderConfig(out=tmp_path / "out", tokens="1K", features=8, batch_size=2)
    result = train_transcoder("pocket-sparse", embedded_data("pocket", seed=0, held_out=8), config)
    assert result.transcoder.config.gated and result.transcoder.config.model == "pocket-sparse"


def test_what_cannot_be_done_is_said_in_one_line(trained, tiny, tmp_path):
    model, data = tiny
    cases = [
        (lambda: train_transcoder(model, config=settings(tmp_path)), "brings no text of its own"),
        (
            lambda: train_transcoder(model, data, settings(tmp_path, context=4096)),
            "longer than the model's own",
        ),
        (lambda: train_transcoder(model, data, settings(tmp_path, resume=True)), "no run to resume"),
        (lambda: train_transcoder(model, data, settings(trained.folder)), "holds a run already"),
        (
            lambda: train_transcoder(model, data, replace(settings(trained.folder, l0=1.0), resume=True)),
            "without `l0`",
        ),
        (lambda: train_transcoder(model, data, settings(tmp_path / "a", tokens="3")), "less than one step"),
        (lambda: TranscoderConfig(features=0), "`features` must be at least 1"),
        (lambda: FeaturesConfig(layer=0, feature=()), "name a feature"),
    ]
    for attempt, message in cases:
        with pytest.raises(EdgewiseError, match=message) as error:
            attempt()
        assert "\n" not in str(error.value)


def test_minutes_that_are_too_few_are_refused_with_those_that_would_do(tiny, tmp_path):
    """They were spent on a single step."""
    config = TranscoderConfig(out=tmp_path / "out", minutes=1e-4)
    with pytest.raises(
        EdgewiseError, match=r"`minutes=0.0001` is too little time: .* give at least `minutes="
    ):
        train_transcoder(*tiny, config)


def test_features_of_deep_models_stay_bearable():
    config = TranscoderConfig()
    assert config.features_for(6, 128) == 512
    assert config.features_for(12, 768) == 4 * 768
    assert config.features_for(30, 576) == 2 * 576
    assert config.features_for(32, 4096) == 4096
    assert TranscoderConfig(features=100).features_for(32, 4096) == 100


class Counted:
    """Rows by number."""

    context, name, step = 24, "counted", 0

    def take(self, n):
        self.step += 1
        ids = text(n, seed=self.step)
        return Batch(ids, ids, None)

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


@torch.no_grad()
def test_the_shuffle_buffer_yields_every_token_once_and_resumes_where_it_was():
    model = model_of("gpt2")
    shuffled = ShuffledActivations(model, Counted(), 2, seed=0)
    states, xs = [], []
    for _ in range(BUFFER_STEPS + 3):
        states.append(shuffled.state_dict())
        xs.append(shuffled.next()[0])
    ids = text(2 * BUFFER_STEPS, seed=1)

    def expected(own: Tensor, index: int = 0) -> Tensor:
        """The inputs of the disturbed passes of the first buffer."""
        return activations(model, Batch(own, own, None), torch.Generator().manual_seed(index))[0]

    buffer, plain = torch.cat(xs[:BUFFER_STEPS], 1), expected(ids)
    assert buffer.shape == plain.shape
    order = lambda x: x[0, x[0, :, 0].argsort()]  # noqa: E731
    torch.testing.assert_close(order(buffer), order(plain), rtol=1e-4, atol=1e-4)
    for step in (0, 7, BUFFER_STEPS, BUFFER_STEPS + 2):
        again = ShuffledActivations(model, Counted(), 2, seed=0)
        again.load_state_dict(json.loads(json.dumps(states[step])))
        assert torch.equal(again.next()[0], xs[step])
    halves = [ShuffledActivations(model, Counted(), 2, 0, index=index, processes=2) for index in range(2)]
    for index, (half, own) in enumerate(zip(halves, ids.chunk(2), strict=True)):
        buffer = torch.cat([half.next()[0] for _ in range(BUFFER_STEPS)], 1)
        torch.testing.assert_close(order(buffer), order(expected(own, index)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_half_of_the_sequences_are_disturbed_and_targets_stay_the_mlps_own(kind):
    """A head puts out its own output, that of the sequence before or its null value; the rest of the model is as it is."""
    twin = edgewise.gate(host(kind), edgewise.GateConfig("relative", b=2.0, null_value=True))
    model: Any = with_null_value(twin).eval()
    gate, n = gates_of(model)[0], 200
    batch = batch_of(rows=n)
    clean, _ = mlp_activations(model, batch)
    disturbing = disturbed_heads(model, n, torch.Generator().manual_seed(3))
    with tap(model, read=["outputs"]) as before, disturbing, tap(model, read=["outputs"]) as after:
        x, y = mlp_activations(model, batch)
    for layer, mlp in enumerate(layer.mlp for layer in decoder_layers(model)):
        given = mlp(x[layer].view(n, -1, D))
        torch.testing.assert_close((given[0] if isinstance(given, tuple) else given).flatten(0, 1), y[layer])
    own, seen = before.last["outputs"][0], after.last["outputs"][0]
    assert gate.null_value is not None
    null_value = gate.null_value.repeat_interleave(gate.heads // gate.kv_heads, 0)[:, None].expand_as(own)
    same, rolled, ablated = (
        (seen == other).flatten(2).all(2) for other in (own, own.roll(1, 0), null_value)
    )  # [n, heads]
    assert (same | rolled | ablated).all() and rolled.any() and ablated.any()
    undisturbed = (x == clean).view(L, n, -1).all(2).all(0)
    assert 0.4 < undisturbed.float().mean() < 0.65


@torch.no_grad()
def test_what_errors_cost_the_predictions():
    """Against the KL divergence itself, of small random errors in each layer's MLP outputs."""
    model = model_of("llama")
    batch, transcoder = batch_of(rows=64), random_transcoder(model)
    _, y = mlp_activations(model, batch)
    transcoder.output_scale.copy_(y.var(1).mean(1).sqrt())
    expected = run_model(model, batch).double().log_softmax(-1)
    costs = torch.zeros(L)
    for number, layer in enumerate(architecture_of(model).layers):
        noise = 0.02 * transcoder.output_scale[number] * torch.randn(*batch.ids.shape, D)
        with replace_output(layer.mlp_out, lambda out, noise=noise: out + noise):
            actual = run_model(model, batch).double().log_softmax(-1)
        costs[number] = (expected.exp() * (expected - actual)).sum() / batch.ids.numel() / 0.02**2
    torch.testing.assert_close(error_costs(model, transcoder, batch, seed=0), costs, rtol=0.15, atol=0)


def test_layers_weigh_what_their_errors_cost():
    costs = torch.tensor([1.0, 2.0, 6.0, 0.0, 1e6])
    assert layer_weights(costs).tolist() == pytest.approx([2.25, 3.5, 8.5, 1.0, 251.0])
    assert layer_weights(torch.full((30,), 7e-4)).tolist() == pytest.approx([3.5] * 30)


@torch.no_grad()
def test_with_little_memory_the_shuffle_buffer_is_in_half_precision():
    """And of fewer steps, each token once; a buffer keeps the size that it was begun with."""
    model, steps = model_of("gpt2"), 3
    ids = text(2 * steps, seed=1)
    plain, _ = activations(model, Batch(ids, ids, None), torch.Generator().manual_seed(0))
    shuffled = ShuffledActivations(model, Counted(), 2, seed=0, buffer_bytes=2 * 2 * plain.numel())
    assert shuffled.buffer_steps == steps
    first = shuffled.next()[0]
    state = shuffled.state_dict()
    rest = [shuffled.next()[0] for _ in range(1, steps)]
    buffer = torch.cat([first, *rest], 1)
    assert buffer.dtype == torch.float32 and buffer.shape == plain.shape
    torch.testing.assert_close(buffer.sum(1), plain.bfloat16().float().sum(1), rtol=1e-4, atol=1e-4)
    again = ShuffledActivations(model, Counted(), 2, seed=0)
    again.load_state_dict(json.loads(json.dumps(state)))
    torch.testing.assert_close(again.next()[0], rest[0], rtol=1e-2, atol=1e-2)


# ------------------------------------------------------------------------------------------------------------- features


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_top_contexts_are_the_strongest_rows(kind):
    model, batch = model_of(kind), batch_of(rows=200)  # more than one piece
    transcoder = random_transcoder(model)
    strongest = top_contexts(model, transcoder, batch, [(1, 3), (0, 2), (1, 0)], k=4, around=3)
    x, _ = mlp_activations(model, batch)
    for (layer, feature), contexts in strongest.items():
        a = transcoder.encode(x)[layer, :, feature].view(200, 24)
        best = a.max(1).values.topk(4)
        assert [c.activation for c in contexts] == pytest.approx(best.values.tolist(), rel=1e-3)
        for context in contexts:
            assert a[context.sequence, context.position].item() == pytest.approx(context.activation, rel=1e-3)
            first = max(0, context.position - 3)
            assert context.ids == batch.ids[context.sequence, first : context.position + 4].tolist()
            assert context.peak == context.position - first
    transcoder.log_threshold.fill_(20.0)
    assert top_contexts(model, transcoder, batch_of(), [(0, 0)], k=4) == {(0, 0): []}


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_promoted_tokens_go_through_the_final_norm(kind):
    model = model_of(kind)
    transcoder = random_transcoder(model)
    norm: Any = architecture_of(model).final_norm
    norm.weight.uniform_(0.5, 2)
    written = transcoder.writes(1)[4].sum(0)
    if kind != "llama":  # a LayerNorm takes the mean away
        written = written - written.mean()
    logits = model.get_output_embeddings().weight @ (norm.weight * written)
    logits = (logits - logits.mean()) / written.square().mean().sqrt()
    promoted = promoted_tokens(model, transcoder, 1, 4, k=5)
    assert [token for token, _ in promoted.raised] == logits.topk(5).indices.tolist()
    assert [value for _, value in promoted.raised] == pytest.approx(logits.topk(5).values.tolist(), rel=1e-3)
    assert [token for token, _ in promoted.lowered] == (-logits).topk(5).indices.tolist()
    with pytest.raises(EdgewiseError, match="no feature 99 in layer 1"):
        promoted_tokens(model, transcoder, 1, 99)


def test_features_are_shown(tiny, trained, capsys):
    _, data = tiny
    busiest = trained.transcoder.encode(torch.randn(2, 500, D)).sum(1)[1].argmax().item()
    config = FeaturesConfig(1, (int(busiest), 3), data=(data,), tokens="2K", k=3)
    print_features(describe_features(trained.folder, config))
    shown = capsys.readouterr().out
    assert f"layer 1, feature {busiest}" in shown and "layer 1, feature 3" in shown
    assert shown.count("raises") == shown.count("lowers") == 2
    with pytest.raises(EdgewiseError, match="no feature 5 in layer 9"):
        describe_features(trained.folder, FeaturesConfig(9, (5,), data=(data,)))
    with pytest.raises(EdgewiseError, match="brings no text of its own"):
        describe_features(trained.folder, FeaturesConfig(1, (5,)))
