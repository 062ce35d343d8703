"""No traceback, no hang, nothing silently wrong: more than a thousand cases of damaged files and absurd arguments.

Every case ends in a result or in one sentence. Each group is drawn from a seed and says which case failed.
"""

import fcntl
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from architectures import build
from hand_made_results import both, flow_of
from hostile import (
    ARGUMENTS,
    VALUES,
    Hang,
    Sandbox,
    begin_case,
    change_config,
    close_sandbox,
    damage,
    damaged_json,
    end_process,
    memory_limit,
    sandboxed,
    time_limit,
)
from hosts import host, text
from made_traces import make_trace
from runs import command, save_llama_and_text

import edgewise
from edgewise.circuits.prompt_maps import PromptMaps, quantise
from edgewise.circuits.result import CircuitResult
from edgewise.cli.flags import flags_of
from edgewise.cli.main import COMMANDS
from edgewise.core.errors import EdgewiseError
from edgewise.data import held_out_only
from edgewise.flow.result import Flows
from edgewise.maps.result import AttentionMaps, Panel
from edgewise.maps.statistics import head_statistics
from edgewise.models.empty import empty_model
from edgewise.models.info import info
from edgewise.reporting.page import report as write_report
from edgewise.tasks.jsonl import read_task
from edgewise.tracing.result import Trace
from edgewise.training.sparsify.result import SparsifyResult
from edgewise.training.transcoder.store import load_transcoder, save_transcoder
from edgewise.training.transcoder.transcoder import Transcoder, TranscoderInfo

pytestmark = pytest.mark.slow
SECONDS = 60
"""Of one case; they take milliseconds, on a busy machine more."""


@pytest.fixture(scope="module", autouse=True)
def sandbox_closed() -> Iterator[None]:
    """End the sandbox after the last test of this file."""
    yield
    close_sandbox()


def check(case: str, call: Callable[[], Any]) -> Any:
    """Run a case: a result, or one line."""
    begin_case(case)
    try:
        with time_limit(SECONDS):
            return call()
    except EdgewiseError as error:
        lines = str(error).splitlines()
        assert len(lines) == 1 and len(lines[0]) < 1500, f"{case}: {lines[:3]}"
    except Hang:
        pytest.fail(f"{case}: took more than {SECONDS} seconds")
    except Exception as error:
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    return None


# ------------------------------------------------------------------------------------------- the sandbox


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("segfault", r"exit code -11; its last case: segfault\nFatal Python error"),
        ("abort", "exit code -6; its last case: abort"),
        ("killed", "exit code -9; its last case: killed"),
        ("blocked", "did not answer in 1 seconds; its last case: blocked"),
        ("memory", "MemoryError"),
    ],
)
def test_a_case_that_ends_its_process_is_named_and_pytest_goes_on(how, said):
    sandbox = Sandbox()
    sandbox.run(begin_case, "none yet")  # answers when the process has begun
    with pytest.raises(AssertionError, match=said):
        sandbox.run(end_process, how, seconds=1 if how == "blocked" else 60)
    assert sandbox.is_open == (how == "memory")
    sandbox.close()


# ------------------------------------------------------------------------------------------- damaged results


def save_circuit(folder: Path) -> None:
    both().save(folder)
    tokens = [["The", " cat"], ["A", " dog", " ran"]]
    maps = [[quantise(torch.rand(3, 4, len(t), len(t)).tril().numpy()) for t in tokens] for _ in range(2)]
    PromptMaps(tokens, maps).save(folder)


def save_maps(folder: Path) -> None:
    maps = torch.rand(2, 5, 5).tril().softmax(-1).tril().numpy()
    heads = ["L0H0", "L1H3"]
    statistics = {head: head_statistics(weights) for head, weights in zip(heads, maps, strict=True)}
    panel = Panel("big", "Big", "dense", heads, maps, statistics, 0.9)
    AttentionMaps("a b c d e", list("abcde"), [panel, panel], "copy").save(folder)


def save_run(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    summary = {
        "model": "pocket", "recipe": "small", "seed": 0, "tolerance": 0.01, "dense_ce": 1.6, "sparse_ce": 1.61,
        "delta_ce": 0.01, "density": 0.01, "edges_per_query": 0.5, "heads_closed": 3, "heads": 48, "tokens": 4096,
        "steps": 8, "seconds": 3.0, "tasks": {"dense": {"copy": 0.9}, "sparse": {"copy": 0.8}},
    }  # fmt: skip
    lines = [{"step": 1, "tokens": 512, "expected_density": 0.5, "beta": 2.0}]
    lines += [{"step": 2, "tokens": 1024, "density": 0.1, "delta_ce": 0.02, "held_out_ce": 1.62}]
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def save_trace(folder: Path) -> None:
    metrics = {
        "features_kept": 3,
        "features_active": 9,
        "influence_kept": 0.8,
        "influence_of_errors": 0.2,
        "closure": 1e-7,
    }
    make_trace(3, layers=3, width=4, groups=(), contexts={}, metrics=metrics).save(folder)


INFO = TranscoderInfo("a model", False, [0.1, 0.2], layers=2, features=6, width=4)
RESULTS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "circuit": (save_circuit, CircuitResult.load),
    "prompt maps": (save_circuit, PromptMaps.load),
    "maps": (save_maps, AttentionMaps.load),
    "flow": (lambda folder: Flows([[flow_of(["a", "b", "c"])]]).save(folder), Flows.load),
    "trace": (save_trace, Trace.load),
    "transcoder": (lambda folder: save_transcoder(Transcoder(INFO), folder), load_transcoder),
    "run": (save_run, SparsifyResult.load),
}


@pytest.mark.parametrize("kind", RESULTS)
@sandboxed
def test_damaged_results(kind, tmp_path):
    save, load = RESULTS[kind]
    save(tmp_path / "whole")
    assert load(tmp_path / "whole") is not None
    for seed in range(90):
        rng, folder = Random(f"{kind} {seed}"), tmp_path / str(seed)
        shutil.copytree(tmp_path / "whole", folder)
        file = rng.choice(sorted(folder.iterdir()))
        case = f"{kind} {seed}: {file.name} {damage(file, rng)}"
        result = check(case, lambda folder=folder: load(folder))
        if result is not None:
            check(f"{case}, shown", lambda result=result: repr(result))


def test_maps_of_other_tokens_are_refused(tmp_path):
    save_circuit(tmp_path)
    saved = json.loads((tmp_path / "prompt-maps.json").read_text())
    saved["tokens"][0].pop()
    (tmp_path / "prompt-maps.json").write_text(json.dumps(saved))
    with pytest.raises(EdgewiseError, match="a prompt has 1 tokens, and its maps have others"):
        PromptMaps.load(tmp_path)


@sandboxed
def test_a_report_shows_what_is_whole_beside_what_is_damaged(tmp_path):
    for seed in range(60):
        rng, folder = Random(f"report {seed}"), tmp_path / str(seed)
        for kind, (save, _) in RESULTS.items():
            save(folder / kind)
        both().save(folder / "whole")
        kind = rng.choice(["circuit", "prompt maps", "trace", "run"])
        file = rng.choice(sorted((folder / kind).iterdir()))
        case = f"report {seed}: {kind} {file.name} {damage(file, rng)}"
        page = check(case, lambda folder=folder: write_report(folder))
        assert page is not None and "L0H1" in page.read_text(), case
        shutil.rmtree(folder)


# ------------------------------------------------------------------------------------------- damaged models


@sandboxed
def test_damaged_twins(tmp_path):
    torch.manual_seed(0)
    twin = edgewise.gate(host("llama"), edgewise.GateConfig("relative", 2.0))
    edgewise.save(twin, tmp_path / "whole")
    with torch.no_grad():
        expected = twin(input_ids=text()).logits
    for seed in range(110):
        rng, folder = Random(f"twin {seed}"), tmp_path / str(seed)
        shutil.copytree(tmp_path / "whole", folder)
        file = rng.choice([*sorted(folder.glob("*.json")), folder / "twin.safetensors"])
        case = f"twin {seed}: {file.name} {damage(file, rng)}"
        check(f"{case}, info", lambda folder=folder: info(folder))
        loaded = check(case, lambda folder=folder: edgewise.load(folder))
        if loaded is not None:  # damage that makes no difference
            with torch.no_grad():
                assert torch.equal(loaded(input_ids=text()).logits, expected), case
        shutil.rmtree(folder)


@sandboxed
def test_damaged_dense_models(tmp_path):
    host("llama").save_pretrained(tmp_path / "whole")
    for seed in range(60):
        rng, folder = Random(f"dense {seed}"), tmp_path / str(seed)
        shutil.copytree(tmp_path / "whole", folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps(damaged_json(config, rng)), errors="surrogatepass")
        check(f"dense {seed}, info", lambda folder=folder: info(folder))
        check(f"dense {seed}", lambda folder=folder: edgewise.load(folder))
        shutil.rmtree(folder)


@pytest.mark.parametrize("layers", [10**7, 10**30])
@sandboxed
def test_a_host_of_millions_of_layers_is_refused_at_once(tmp_path, layers):
    host("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    for look in (info, edgewise.load, edgewise.plan):
        with time_limit(SECONDS), pytest.raises(EdgewiseError, match="layers"):
            look(tmp_path)


OTHER_SIZES = {
    "hidden_size": 10**7, "intermediate_size": 10**8, "head_dim": 10**7, "vocab_size": 10**9,
    "num_key_value_heads": 4 * 10**6,
}  # fmt: skip


@pytest.mark.parametrize("field", OTHER_SIZES)
@sandboxed
def test_a_size_that_the_weights_do_not_have_is_refused_before_memory_is_taken(tmp_path, field):
    """Sizes that just fit into memory: transformers would initialise them, and the process be killed."""
    host("llama").save_pretrained(tmp_path)
    change_config(tmp_path, **{field: OTHER_SIZES[field]})
    with (
        memory_limit(2**30),
        pytest.raises(EdgewiseError, match=r"asks for [\d,]+ weights, [\d,]+ in [\w.]+ alone"),
    ):
        edgewise.load(tmp_path)


@sandboxed
def test_tables_that_no_memory_holds_are_refused(tmp_path):
    build("codegen").save_pretrained(tmp_path)
    change_config(tmp_path, n_positions=10**12)
    with memory_limit(2**30), pytest.raises(EdgewiseError, match=r"asks for tables of [\d,]+ GiB"):
        edgewise.load(tmp_path)


@sandboxed
def test_a_head_of_millions_of_frequencies_is_refused(tmp_path):
    """DeepSeek's weights do not depend on this width, so that nothing else is wrong with it."""
    build("deepseek_v3").save_pretrained(tmp_path)
    change_config(tmp_path, head_dim=10**8)
    with memory_limit(2**30), pytest.raises(EdgewiseError, match=r"a table of 50,000,000 numbers"):
        edgewise.load(tmp_path)


@sandboxed
def test_a_width_that_the_model_does_not_read_does_not_matter(tmp_path):
    host("gpt2").save_pretrained(tmp_path)
    expected = info(tmp_path)
    change_config(tmp_path, intermediate_size="x")
    assert info(tmp_path).parameters == expected.parameters


@sandboxed
def test_millions_of_modules_are_refused():
    config = host("llama").config
    assert sum(1 for _ in empty_model(config, "a model", max_modules=100).parameters()) == 30
    with pytest.raises(EdgewiseError, match="cannot be built from its config: it has more than 20 modules"):
        empty_model(config, "a model", max_modules=20)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": ["llama"]},
        {"model_type": {}},
        {"num_hidden_layers": 0},
        {"max_position_embeddings": -1},
        {"max_position_embeddings": 1},
        {"dtype": "nn"},
    ],
)
@sandboxed
def test_configs_of_models_that_do_not_run_are_refused(tmp_path, change):
    host("llama").save_pretrained(tmp_path)
    change_config(tmp_path, **change)
    with pytest.raises(EdgewiseError):
        edgewise.load(tmp_path)
    check(f"info {change}", lambda: info(tmp_path))


def test_sizes_that_differ_are_named_with_their_tensor(tmp_path, capfd):
    host("llama").save_pretrained(tmp_path)
    change_config(tmp_path, num_key_value_heads=4)
    with pytest.raises(
        EdgewiseError, match=r"k_proj.weight of \[32, 32\], and the checkpoint has it as \[16, 32\]"
    ):
        edgewise.load(tmp_path)
    assert "LOAD REPORT" not in capfd.readouterr().err


@pytest.mark.parametrize("change", [{"rope_parameters": {"rope_type": "\ud800"}}, {"a\udfff": 1}])
def test_half_of_a_surrogate_pair_is_refused(tmp_path, change, caplog):
    """transformers would log it, and whatever collects logs would fail: pytest's workers died of it."""
    host("llama").save_pretrained(tmp_path)
    change_config(tmp_path, **change)
    for look in (info, edgewise.load, edgewise.plan, edgewise.load_tokenizer):
        with pytest.raises(EdgewiseError, match="half of a pair"):
            look(tmp_path)
    caplog.text.encode()


# ------------------------------------------------------------------------------------------- tasks and texts

PAIR = {
    "clean": "the cat and the dog . the cat",
    "corrupt": "the dog and the cat . the dog",
    "answer": "and",
    "wrong": ".",
}


@sandboxed
def test_damaged_lines_of_a_task(tmp_path):
    tokenizer = edgewise.load_tokenizer("pocket")
    for seed in range(150):
        rng, path = Random(f"task {seed}"), tmp_path / f"{seed}.jsonl"
        lines = [json.dumps(PAIR)] * rng.choice([0, 1, 5])
        lines.insert(rng.randrange(len(lines) + 1), json.dumps(damaged_json(PAIR, rng)))
        path.write_bytes("\n".join(lines).encode(errors="replace"))
        if rng.random() < 0.2:
            damage(path, rng)
        check(f"task {seed}", lambda path=path: read_task(path, tokenizer))


NULLS = [
    "null",
    "  null",
    "null\nnull\n",
    '[null, {"text": "b"}]',
    "\ufeffnull",
    '{"text": "a"}\nnull\n{"text": "b"}\n',
]


@pytest.mark.parametrize("ending", ["json", "jsonl"])
@sandboxed
def test_texts_of_null_do_not_end_the_process(tmp_path, ending):
    tokenizer = edgewise.load_tokenizer("pocket")
    for number, content in enumerate(NULLS):
        path = tmp_path / f"{number}.{ending}"
        path.write_text(content)
        if ending == "jsonl" or number < 5:
            with pytest.raises(EdgewiseError, match="null in the place of a record"):
                held_out_only(path, tokenizer, 4, tokens=64)


@sandboxed
def test_damaged_texts(tmp_path):
    tokenizer = edgewise.load_tokenizer("pocket")
    records = [{"text": "the cat and the dog . " * 4, "n": 1}] * 3
    for seed in range(60):
        rng = Random(f"text {seed}")
        path = tmp_path / f"{seed}.{rng.choice(['json', 'jsonl', 'txt', 'parquet', 'jsonl.gz', 'csv'])}"
        damaged = [damaged_json(record, rng) for record in records]
        content = json.dumps(damaged) if path.suffix == ".json" else "\n".join(map(json.dumps, damaged))
        path.write_bytes(content.encode(errors="replace"))
        if rng.random() < 0.4:
            damage(path, rng)
        check(f"text {seed}: {path.name}", lambda path=path: held_out_only(path, tokenizer, 4, tokens=64))


# ------------------------------------------------------------------------------------------- arguments


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return save_llama_and_text(tmp_path_factory.mktemp("place"))


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "demo"])
@sandboxed
def test_absurd_arguments_of_a_command(name, tmp_path):
    """Arguments are refused before a model is looked for; here there is none, so that nothing is computed."""
    os.chdir(tmp_path)
    flags = [flag for flag in flags_of(COMMANDS[name]).values() if flag not in ("--open", "--resume")]
    for seed in range(40):
        rng = Random(f"{name} {seed}")
        words = [rng.choice(["./nowhere", "x" * 300, "a b", "/dev/null", "no/such:name"])]
        for flag in rng.sample(flags, min(len(flags), rng.choice([1, 1, 2]))):
            words += [flag, *rng.sample(ARGUMENTS, rng.choice([0, 1, 1, 1, 2]))]
        check_command(name, *words)


def check_command(name: str, *words: Any) -> None:
    case = f"edgewise {name} {' '.join(map(str, words))}"[:300]
    outcome = check(case, lambda: command(name, *words))
    assert outcome is not None, case
    code, _, err = outcome
    assert code in (0, 2) and "Traceback" not in err, f"{case}: {err[-500:]}"
    ours = [line for line in err.splitlines() if line.startswith("edgewise: ")]
    assert code == 0 or len(ours) == 1 or "full helptext" in err, f"{case}: {err[-500:]}"


OUTS = ["/dev/full", "/proc/nothing", "FILE", "FILE/below", "LOOP", "a\0b", "x" * 300]


@pytest.mark.parametrize("out", OUTS)
def test_outputs_that_cannot_be_written(out, place, tmp_path):
    (tmp_path / "FILE").write_text("kept")
    (tmp_path / "LOOP").symlink_to(tmp_path / "LOOP")
    target = str(tmp_path / out) if out[0] in "FLx" else out
    text_file = place / "text.txt"
    both().save(tmp_path / "results")
    figures = ("eval", place / "llama", "--data", text_file, "--tokens", 512, "--out", target)
    page = ("report", tmp_path / "results", "--out", target)
    for words in (
        *([] if out == "FILE" else [figures, page]),  # these write a file
        ("flow", place / "llama", "--prompt", "the cat", "--out", target),
        ("maps", place / "llama", "--prompt", "the cat", "--heads", "L0H0", "--out", target),
    ):
        code, printed, err = command(*words)
        said = [line for line in err.splitlines() if line.startswith("edgewise: ")]
        assert code == 2 and len(said) == 1, (words, err)
        assert words[0] != "eval" or "llama" in printed  # what was computed is shown
    assert (tmp_path / "FILE").read_text() == "kept" and Path("/dev/full").is_char_device()


def test_a_device_is_written_to_and_stays_a_device(tmp_path):
    both().save(tmp_path)
    assert command("report", tmp_path, "--out", "/dev/null")[0] == 0
    assert Path("/dev/null").is_char_device()


def test_there_are_a_thousand_cases():
    arguments = 40 * (len(COMMANDS) - 1)
    assert 90 * len(RESULTS) + 60 + 110 + 60 + 150 + 60 + arguments + 4 * len(OUTS) > 1000
    assert any(isinstance(value, float) and math.isnan(value) for value in VALUES)


def test_a_folder_that_another_process_writes_to(place, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    descriptor = os.open(out, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    for words in (
        ("flow", place / "llama", "--prompt", "the cat"),
        ("maps", place / "llama", "--prompt", "the cat", "--heads", "L0H0"),
        ("circuit", place / "llama", "--task", "copy"),
        ("sparsify", place / "llama", "--data", place / "text.txt", "--batch-size", 4, "--tokens", 512),
        # noticed before its snapshots are read: the other process may be writing a newer one
        ("sparsify", place / "llama", "--data", place / "text.txt", "--resume"),
        ("transcoder", place / "llama", "--data", place / "text.txt", "--resume"),
    ):
        code, _, err = command(*words, "--out", out)
        assert code == 2 and "another process is writing to" in err, (words, err)
    os.close(descriptor)
    assert not list(out.iterdir())


def test_what_was_computed_is_printed_where_it_cannot_be_saved(place, tmp_path):
    (tmp_path / "flow.json").mkdir()
    code, _, err = command("flow", place / "llama", "--prompt", "the cat", "--out", tmp_path)
    assert code == 2 and "is a folder" in err and "open edges" in err
