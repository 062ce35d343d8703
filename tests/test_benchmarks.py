"""Tasks of lm-evaluation-harness, offline: a task made of local files, judged as the model itself says."""

import functools
import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml
from runs import command

import edgewise
from edgewise import EdgewiseError

lm_eval = pytest.importorskip(
    "lm_eval", reason="lm-evaluation-harness is not installed: pip install 'edgewise[eval]'"
)
MODELS = ("pocket", "pocket-sparse")
QUESTIONS = [
    {"prompt": f'The opposite of " {word} " is "', "choices": choices, "answer": answer}
    for word, choices, answer in [
        ("large", ["small", "large"], 0),
        ("hot", ["hot", "cold"], 1),
        ("cold", ["cold", "small"], 0),  # wrong on purpose: neither model says so
    ]
]


@functools.cache
def by_hand(name: str) -> float:
    """Accuracy from the logits at the end of the prompts."""
    model, tokenizer = edgewise.load(name), edgewise.load_tokenizer(name)
    right = 0
    for question in QUESTIONS:
        ids = tokenizer(question["prompt"], return_tensors="pt").input_ids
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, -1]
        choices = tokenizer.convert_tokens_to_ids(question["choices"])
        right += int(logits[choices].argmax()) == question["answer"]
    return right / len(QUESTIONS)


@pytest.fixture(scope="module")
def task_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    task = {
        "task": "opposites",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "questions.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{prompt}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    }
    (folder / "opposites.yaml").write_text(yaml.safe_dump(task))
    return folder


def test_accuracy_is_that_of_the_gated_model(task_folder, tmp_path):
    result = edgewise.evaluate_tasks(MODELS, "opposites", task_folder=task_folder)
    assert [(score.model, score.metric) for score in result.scores] == [(name, "acc") for name in MODELS]
    assert [score.value for score in result.scores] == pytest.approx([by_hand(name) for name in MODELS])
    result.save(tmp_path)
    assert edgewise.Benchmarks.load(tmp_path) == result and "+0.000" in repr(result)
    with pytest.raises(EdgewiseError, match="only a table"):
        result.plot()


def test_the_harness_opens_a_twin_by_the_entry_point(task_folder):
    """As `lm_eval --model edgewise --model_args pretrained=...` does it."""
    pyproject = Path(__file__).parent.parent.joinpath("pyproject.toml").read_text()
    value = re.search(r'"lm_eval.models"\]\nedgewise = "(.*)"', pyproject)
    assert value is not None
    from lm_eval.api.registry import model_registry  # pyright: ignore
    from lm_eval.evaluator import simple_evaluate  # pyright: ignore
    from lm_eval.tasks import TaskManager  # pyright: ignore

    model_registry.register("edgewise", target=EntryPoint("edgewise", value[1], "lm_eval.models"))
    results = simple_evaluate(
        model="edgewise", model_args="pretrained=pocket-sparse", tasks=["opposites"], device="cpu", bootstrap_iters=0,
        task_manager=TaskManager(include_path=str(task_folder), include_defaults=False),
    )  # fmt: skip
    assert results is not None
    scores = cast(Any, results)["results"]
    assert scores["opposites"]["acc,none"] == pytest.approx(by_hand("pocket-sparse"))


@pytest.mark.slow
def test_the_command_line_hands_over(task_folder, tmp_path):
    code, out, err = command(
        "eval",
        *MODELS,
        "--tasks",
        "opposites",
        "--task-folder",
        task_folder,
        "--out",
        tmp_path / "scores.json",
    )
    assert code == 0, err
    assert "opposites" in out and len(json.loads((tmp_path / "scores.json").read_text())) == 2


@pytest.mark.slow
def test_the_harness_s_own_command_line_scores_a_twin_end_to_end(task_folder, tmp_path):
    """`python -m edgewise.measure.lm_eval_model` is `lm_eval` with the model type, whatever its release."""
    arguments = [
        "run", "--model", "edgewise", "--model_args", "pretrained=pocket-sparse,dtype=float32", "--tasks", "opposites",
        "--include_path", str(task_folder), "--output_path", str(tmp_path / "out"), "--device", "cpu",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "edgewise.measure.lm_eval_model", *arguments],
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (written,) = (tmp_path / "out").rglob("results*.json")
    scores = json.loads(written.read_text())["results"]
    assert scores["opposites"]["acc,none"] == pytest.approx(by_hand("pocket-sparse"))


@pytest.mark.slow
def test_a_task_that_nobody_knows_is_refused():
    code, _, err = command("eval", "pocket", "--tasks", "no-such-task")
    assert code == 2 and "knows no task no-such-task" in err


@pytest.mark.slow
def test_the_papers_table_is_known_to_the_harness():
    from lm_eval.tasks import TaskManager  # pyright: ignore

    from edgewise.measure.benchmarks import PAPER

    assert set(PAPER) <= set(TaskManager().all_tasks)


def test_a_task_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "broken.yaml").write_text(yaml.safe_dump({"task": "broken", "dataset_path": "json", "test_split": "test",
        "dataset_kwargs": {"data_files": {"test": "nothing.jsonl"}}, "doc_to_text": "", "doc_to_target": ""}))  # fmt: skip
    with pytest.raises(EdgewiseError, match="cannot run broken"):
        edgewise.evaluate_tasks("pocket", "broken", task_folder=tmp_path)
