"""Two workers on two cores: one thread each, and threads that sleep while they wait."""

import os
from collections.abc import Generator

import pytest

# before torch is imported; processes that tests start inherit it
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test prints of a damaged file may hold a lone surrogate, and a worker cannot send that."""
    report = yield
    report.sections = [(title, _encodable(text)) for title, text in report.sections]
    if report.failed and _encodable(str(report.longrepr)) != str(report.longrepr):
        report.longrepr = _encodable(str(report.longrepr))
    return report


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
