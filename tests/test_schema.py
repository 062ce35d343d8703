"""Saved results are read through their types: damage names the file and the field, and nothing is waited for."""

import json
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hand_made_results import both, circuit, result_of
from killed import copies_before_each_operation

from edgewise.circuits.result import CircuitResult
from edgewise.core.errors import EdgewiseError
from edgewise.core.schema import read_as, read_json_lines, saved_form
from edgewise.reporting.page import report as write_report
from edgewise.training.sparsify.result import SparsifyResult


class Pair(NamedTuple):
    key: int
    weight: float


@dataclass(frozen=True)
class Inner:
    pairs: list[Pair]
    name: str | None = None


@dataclass(frozen=True)
class Outer:
    inner: list[Inner]
    rate: float = 0.5


def test_what_is_read_has_its_types(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"inner": [{"pairs": [[1, 2]], "more": 1}], "rate": NaN}')
    read = read_as(Outer, path)
    assert read.inner == [Inner([Pair(1, 2.0)])] and read.rate != read.rate
    path.write_text('{"rate": 2}')
    assert vars(read_as(saved_form(Outer, "inner"), path)) == {"rate": 2.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"inner": [{"pairs": [[1, "2"]]}]}',
            r"x\.json holds no result .*: inner\[0\]\.pairs\[0\]\[1\]: input",
        ),
        ('{"inner": [{"pairs": [[true, 2]]}]}', r"inner\[0\]\.pairs\[0\]\[0\]"),
        ('{"inner": {}}', "inner: input should be a valid array"),
        ("{}", "inner: field required"),
        ("null", "should be an object"),
        ("", "EOF"),
        ('{"inner": [', "EOF"),
        ("[" * 100_000, "recursion limit"),
        ("\0", "invalid JSON"),
    ],
)
def test_damage_names_the_file_and_the_field(tmp_path, text, message):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(EdgewiseError, match=message) as error:
        read_as(Outer, path)
    assert "\n" not in str(error.value)


def test_pipes_devices_folders_and_huge_files_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text(" " * 100)
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path, tmp_path / "nothing", "a\0b"):
        with pytest.raises(EdgewiseError):
            read_as(Any, path)
    with pytest.raises(EdgewiseError, match="too large"):
        read_as(Any, tmp_path / "large", max_bytes=99)


def test_the_last_line_of_a_log_may_be_cut_off(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_json_lines(path) == [{"step": 1}, {"step": 2}]
    path.write_text('{"step": 1}\n[]\n{"step": 2}\n')
    with pytest.raises(EdgewiseError, match="line 2"):
        read_json_lines(path)


def test_one_damaged_circuit_does_not_take_the_report_with_it(tmp_path):
    for name in ("good", "bad", "pipe"):
        result_of(circuit("small", "dense", 3, 9)).save(tmp_path / name)
    saved = tmp_path / "bad" / "circuit.json"
    content = json.loads(saved.read_text())
    content["models"][0]["prompts"] = "many"
    saved.write_text(json.dumps(content))
    with pytest.raises(EdgewiseError, match=r"bad/circuit\.json holds no circuits .*models\[0\]"):
        CircuitResult.load(saved)
    (tmp_path / "pipe" / "circuit.json").unlink()
    os.mkfifo(tmp_path / "pipe" / "circuit.json")
    page = write_report(tmp_path).read_text()
    assert "models[0]" in page and "is not a file with" in page


def test_a_result_that_is_saved_again_is_whole_at_any_moment(tmp_path):
    folder = tmp_path / "out"
    result_of(circuit("small", "dense", 3, 9)).save(folder)
    with copies_before_each_operation(folder, tmp_path / "killed") as copies:
        both().save(folder)
        SparsifyResult({"density": 0.1}, folder).save()
        SparsifyResult({"density": 0.2}, folder).save()
    assert len(copies) >= 6
    for copy in copies:
        assert len(CircuitResult.load(copy).models) in (1, 2)
        if (copy / "summary.json").exists():
            assert read_as(dict[str, float], copy / "summary.json")["density"] in (0.1, 0.2)
