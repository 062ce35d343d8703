"""Post-training in two processes: the same as in one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runs import (
    CONTEXT,
    ROWS,
    farthest,
    mean_difference,
    save_host,
    save_llama_and_text,
    settings,
    snapshot_names,
    weights,
)

import edgewise

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("distributed")]

STEPS = 3
RUNS = {
    "small": {},
    "paper": {"recipe": "paper", "grad_accum": 2},  # whose gates are sampled
    "alone": {"layerwise_warmup": str(2 * ROWS * CONTEXT)},
    "sharded": {"recipe": "pretrained", "lr": 1e-3},  # whose weights are averaged
}

AVERAGED = ("--recipe", "pretrained", "--lr", 1e-3)

# Of FSDP, accelerate knows nothing on a CPU: it would quietly take DDP instead. FSDP 2 itself works there, so it is told.
WORKER = """
import contextlib, json, sys
from pathlib import Path
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
import edgewise
from edgewise.cli.main import main
from edgewise.training.averaging import local_part
from edgewise.training.callbacks import Callback

def shard():
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["LlamaDecoderLayer"]
    )
    for state in (AcceleratorState, PartialState):
        state._shared_state |= {"distributed_type": DistributedType.FSDP, "fsdp_plugin": plugin}

class DenseNumbers(Callback):
    # how many of the dense model's numbers each process has

    def on_begin(self, trainer):
        run = trainer.run
        sizes = [(local_part(p).numel(), p.numel()) for p in run.dense.parameters()]
        out = run.config.out.parent / f"dense-{run.accelerator.process_index}.json"
        out.write_text(json.dumps([sum(x) for x in zip(*sizes)]))

def sparsify(model, data, out):
    config = edgewise.SparsifyConfig(out=Path(out), tokens="256", batch_size=4, recipe="pretrained", plot=False)
    given = edgewise.load(model)
    edgewise.sparsify(given, data, config, tokenizer=edgewise.load_tokenizer(model), callbacks=[DenseNumbers()])
    assert all(type(p.data) is torch.Tensor for p in given.parameters())  # as it was

for command in json.loads(sys.argv[1]):
    if command == "shard":
        shard()
    elif command[0] == "in Python":
        sparsify(*command[1:])
    elif command == "careless":
        AcceleratorState._shared_state["fsdp_plugin"].cpu_ram_efficient_loading = True
    else:
        sys.argv = ["edgewise", *command]
        with contextlib.suppress(SystemExit):
            main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return save_llama_and_text(tmp_path_factory.mktemp("place"))


def arguments(place: Path, out: Path, *others: object) -> list[str]:
    return [
        str(word)
        for word in (
            *(
                "sparsify",
                place / "llama",
                "--data",
                place / "text.txt",
                "--batch-size",
                ROWS,
                "--save-minutes",
                0,
            ),
            *("--tokens", STEPS * ROWS * CONTEXT, "--out", out, *others),
        )
    ]


@pytest.fixture(scope="module")
def together(place) -> str:
    """What two processes said. They leave their runs in `place`."""
    (place / "worker.py").write_text(WORKER)
    save_host(place / "half", "llama", torch.bfloat16)
    commands = [
        arguments(place, place / "small"),
        arguments(place, place / "paper", "--recipe", "paper", "--grad-accum", 2),
        arguments(place, place / "alone", "--layerwise-warmup", 2 * ROWS * CONTEXT),
        "shard",
        arguments(place, place / "sharded", *AVERAGED),
        arguments(place, place / "resumed", "--tokens", ROWS * CONTEXT, *AVERAGED),
        arguments(place, place / "resumed", "--resume"),
        arguments(place, place / "lora", "--lora", 2),
        arguments(place, place / "alone-in-shards", "--layerwise-warmup", ROWS * CONTEXT),
        arguments(place, place / "controls", "--controls"),
        ["in Python", str(place / "half"), str(place / "text.txt"), str(place / "half-sharded")],
        "careless",
        arguments(place, place / "careless"),
    ]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, place / "worker.py", json.dumps(commands)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_are_one(place, together, tmp_path, name):
    alone = edgewise.sparsify(
        place / "llama", place / "text.txt", settings(tmp_path, steps=STEPS, **RUNS[name])
    )
    found = json.loads((place / name / "summary.json").read_text())
    assert found["settings"]["processes"] == 2 and found["steps"] == STEPS
    dense, twin = edgewise.load(place / "llama").state_dict(), weights(place / name)
    other = weights(alone.folder)
    assert farthest({key: twin[key] for key in dense}, dense) > 1e-3
    # Adam's first steps are as large for a gradient that is nearly zero, whose sign is rounding: one weight in thousands
    assert farthest(twin, other) < 3e-4
    assert mean_difference(twin, other) < 1e-6
    for figure in ("dense_ce", "sparse_ce", "density", "edges_per_query"):
        assert found[figure] == pytest.approx(alone.summary[figure], rel=1e-4)
    assert torch.allclose(
        torch.tensor(found["b_per_head"]), torch.tensor(alone.summary["b_per_head"]), atol=1e-4
    )
    lines = [json.loads(line) for line in (place / name / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "beta" in line and "delta_ce" not in line] == [
        1,
        2,
        3,
    ]  # of one process only
    assert [line["step"] for line in lines if "delta_ce" in line] == [3]


def test_a_run_in_shards_is_saved_whole_and_goes_on(place, together):
    assert edgewise.load(place / "sharded")(input_ids=torch.arange(CONTEXT)[None]).logits.isfinite().all()
    assert snapshot_names(place / "resumed") == ["step-000000002", "step-000000003"]
    snapshot = place / "resumed" / "snapshots" / "step-000000003"
    assert (snapshot / "pytorch_model_fsdp_0").is_dir()
    assert len(list(snapshot.glob("average-*-of-2.safetensors"))) == 2
    assert json.loads((place / "resumed" / "summary.json").read_text())["steps"] == STEPS
    assert edgewise.load(place / "resumed")(input_ids=torch.arange(CONTEXT)[None]).logits.isfinite().all()


def test_the_dense_model_is_sharded_like_the_twin(place, together):
    """One in half precision too, given as a model, which stays as it was."""
    for process in range(2):
        own, all_numbers = json.loads((place / f"dense-{process}.json").read_text())
        assert own < 0.51 * all_numbers
    twin = edgewise.load(place / "half-sharded")
    assert twin(input_ids=torch.arange(CONTEXT)[None]).logits.isfinite().all()


def test_what_cannot_be_sharded_is_refused(place, together):
    assert "edgewise: --lora does not go together with FSDP" in together
    assert "edgewise: --layerwise-warmup does not go together with FSDP" in together
    assert "edgewise: --controls does not go together with FSDP" in together
    assert "start with --fsdp_cpu_ram_efficient_loading false" in together
    assert not any((place / name).exists() for name in ("lora", "alone-in-shards", "controls", "careless"))


@pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="accelerate has FSDP on GPUs only, of which this needs two"
)
@pytest.mark.parametrize("version", [1, 2])
def test_fsdp_on_gpus(place, tmp_path, version):
    launch = [
        *(sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1"),
        *("--mixed_precision", "no", "--dynamo_backend", "no", "--use_fsdp", "--fsdp_version", str(version)),
        *("--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "--fsdp_cpu_ram_efficient_loading", "false"),
        *("--main_process_port", "0", "-m", "edgewise"),
    ]
    subprocess.run([*launch, *arguments(place, tmp_path)], check=True)
    assert edgewise.load(tmp_path)(input_ids=torch.arange(CONTEXT)[None]).logits.isfinite().all()
