"""How many threads compute, and how they wait."""

import json
import os
import subprocess
import sys

import pytest
import torch

from edgewise.core.threads import CoreUse, FreeCores, threads_beside, use_free_cores

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.mark.parametrize(
    ("others", "cores", "limit", "threads"),
    [(0.0, 2, 2, 2), (0.9, 2, 2, 1), (0.3, 2, 2, 2), (1.9, 2, 2, 1), (5.0, 2, 2, 1), (2.0, 8, 4, 4), (5.0, 8, 8, 3)],
)  # fmt: skip
def test_as_many_threads_as_free_cores(others, cores, limit, threads):
    assert threads_beside(others, cores, limit) == threads


def test_what_this_process_uses_is_not_what_others_use():
    before, after = CoreUse(0.0, 10.0, 5.0), CoreUse(2.0, 14.0, 8.0)
    assert after.cores_of_others(before) == pytest.approx(0.5)
    assert CoreUse(2.0, 10.0, 5.1).cores_of_others(before) == 0.0


def test_counters_of_this_machine_rise():
    before = CoreUse.now()
    sum(i * i for i in range(300_000))
    after = CoreUse.now()
    assert after.elapsed > before.elapsed and after.own > before.own and after.busy >= before.busy


def test_a_number_that_the_user_chose_is_kept(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    readings = iter([CoreUse(10.0 * i, 100.0 * i, 0.0) for i in range(3)])  # others use ten cores
    free = FreeCores(lambda: next(readings))
    try:
        torch.set_num_threads(3)
        free.update()
        assert torch.get_num_threads() == 1
        torch.set_num_threads(2)
        free.update()
        assert torch.get_num_threads() == 2
        assert next(readings, None) is None  # both updates measured
    finally:
        torch.set_num_threads(before)


def test_the_environment_decides(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    before = torch.get_num_threads()
    use_free_cores()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("given", "policy", "spins"),
    [({}, "passive", "500"), ({"OMP_WAIT_POLICY": "active"}, "active", None), ({"GOMP_SPINCOUNT": "9"}, None, "9")],
)  # fmt: skip
def test_threads_sleep_soon_while_they_wait_unless_told_otherwise(given, policy, spins):
    environment = {key: value for key, value in os.environ.items() if key not in WAITING} | given
    code = (
        "import sys, os, json, edgewise;"
        "names = ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT');"
        "print(json.dumps([*map(os.environ.get, names), 'torch' in sys.modules]))"
    )
    output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert json.loads(output.stdout) == [policy, spins, False]
