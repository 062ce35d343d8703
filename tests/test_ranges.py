"""Ranges of arguments: declared as types, refused in one sentence, the same for the API and the command line."""

import math
from dataclasses import replace

import pytest
from runs import command

import edgewise
from edgewise.core.errors import EdgewiseError
from edgewise.core.quantities import byte_count, token_count
from edgewise.flow.config import FlowConfig
from edgewise.kernels.cpu import cached_njit
from edgewise.tasks.jsonl import read_task
from edgewise.training.transcoder.config import TranscoderConfig
from edgewise.training.transcoder.run import check_memory
from edgewise.training.transcoder.transcoder import TranscoderInfo

HUGE = int("9" * 400)


@pytest.mark.parametrize(
    ("config", "name", "values"),
    [
        (edgewise.SparsifyConfig(), "seed", (-1, 2**32, 1.5, "0", True)),
        (edgewise.SparsifyConfig(), "tokens", ("0", "9" * 400, "1__", "-5", "", "1e9")),
        (edgewise.SparsifyConfig(), "minutes", (0, -1, math.inf, math.nan, HUGE, "5")),
        (edgewise.SparsifyConfig(), "lr", (0, 1e308, math.inf)),
        (edgewise.SparsifyConfig(), "lora", (0, 10**7)),
        (edgewise.SparsifyConfig(), "batch_size", (0, HUGE)),
        (edgewise.SparsifyConfig(), "dtype", ("float64", None)),
        (edgewise.SparsifyConfig(), "sinks", ("no",)),
        (edgewise.SparsifyConfig(), "valid", ("held_out.txt",)),
        (TranscoderConfig(), "features", (0, HUGE)),
        (TranscoderConfig(), "l0", (-1, math.nan)),
        (edgewise.FeaturesConfig(0, (0,)), "feature", ((-1,), ("a",), ())),
        (edgewise.CircuitConfig(), "max_memory", ("0", "9" * 400 + "G", "lots")),
        (edgewise.CircuitConfig(), "threshold", (0, 1, math.nan)),
        (edgewise.MapsConfig(), "prompts", (0, 10**12)),
        (edgewise.TraceConfig(), "node_threshold", (0, 1.1, math.nan)),
        (edgewise.TraceConfig(), "key", (0, -1)),
        (edgewise.InterventionConfig(heads=("L0H0",)), "scale", (math.nan, math.inf, -1e308)),
        (edgewise.MapStyle(), "mark", ("9" * 400 + ",1", "a")),
        (edgewise.MapStyle(), "columns", (0, HUGE)),
        (edgewise.GateConfig(), "b", (math.nan, 1e300, "3")),
        (FlowConfig(), "prompt", ("one text",)),
    ],
)
def test_what_is_out_of_range_is_refused_in_a_sentence_that_names_the_argument(config, name, values):
    for value in values:
        with pytest.raises(EdgewiseError) as error:
            replace(config, **{name: value})
        message = str(error.value)
        assert "\n" not in message and len(message) < 200
        assert name in message or "is no number of tokens" in message or "is no amount of memory" in message


def test_numbers_of_any_kind_are_taken():
    import numpy as np

    config = edgewise.SparsifyConfig(seed=np.int64(3), minutes=5, density=np.float32(0.02), tokens=4096)
    assert (config.token_limit, config.minute_limit) == (4096, 5)


def test_quantities():
    assert [token_count(text) for text in ("500K", "1.5b", "40_000")] == [500_000, 1_500_000_000, 40_000]
    assert [byte_count(text) for text in ("500M", "2 GiB", "7")] == [500 * 2**20, 2**31, 7]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("eval", "pocket", "--tokens", "0"), "--tokens must be at least 1"),
        (("eval", "pocket", "--tokens", "9" * 400), "is no number of tokens"),
        (("eval", "pocket", "--context", "0"), "--context must be at least 2"),
        (("eval", "pocket", "--context", "-1"), "--context must be at least 2"),
        (("tasks", "pocket", "--n", "999999999999"), "--n must be at most 100,000"),
        (("tasks", "pocket", "--seed", "-1"), "--seed must be at least 0"),
        (("plan", "pocket", "--tokens", "1__"), "is no number of tokens"),
        (("plan", "pocket", "--batch-size", "9" * 20), "--batch-size must be at most"),
        (("maps", "pocket", "--mark", "9" * 400), "is no cell"),
        (("sparsify", "pocket", "--seed", "-1"), "--seed must be at least 0"),
        (("sparsify", "pocket", "--minutes", "inf"), "--minutes must be a finite number"),
        (("sparsify", "pocket", "--lr", "1e308"), "--lr must be above 0 and at most 10"),
        (("circuit", "pocket", "--prompts", "9" * 30), "--prompts must be at most"),
    ],
)
def test_the_command_line_names_the_flag(arguments, message):
    code, _, err = command(*arguments)
    assert code == 2 and message in err and err.count("\n") == 1, err


def test_a_plan_of_a_large_batch_or_of_one_token_takes_no_time():
    assert edgewise.plan("pocket", edgewise.SparsifyConfig(batch_size=2**24)).batch_size == 2**24
    assert edgewise.plan("pocket", edgewise.SparsifyConfig(tokens="1")).tokens == 1


def test_a_task_of_too_many_lines_is_refused_before_they_are_tokenized(tmp_path):
    line = '{"clean": "the cat", "corrupt": "the dog", "answer": "and", "wrong": "."}\n'
    (tmp_path / "task.jsonl").write_text(line * 100_000)
    with pytest.raises(EdgewiseError, match=r"has 100,001 lines; a task has at most 10,000 pairs"):
        read_task(tmp_path / "task.jsonl", edgewise.load_tokenizer("pocket"))


def test_more_features_than_memory_are_refused():
    with pytest.raises(EdgewiseError, match=r"`features=16000000` need [\d,]+ GB"):
        check_memory(TranscoderInfo("a model", False, [], 12, 16_000_000, 768))


def test_a_file_without_a_place_for_numbas_cache_is_compiled_all_the_same():
    scope: dict = {}
    exec("def double(x):\n    return 2 * x", scope)  # no file, no place beside it
    assert cached_njit()(scope["double"])(3) == 6


@pytest.mark.parametrize("analysis", ["trace", "intervene", "find_circuits", "collect_maps", "collect_flow"])
def test_something_else_than_a_config_is_refused_in_a_sentence(analysis):
    with pytest.raises(EdgewiseError, match=r"`config` must be a \w+Config, not 'The opposite'"):
        getattr(edgewise, analysis)("pocket", "The opposite")
