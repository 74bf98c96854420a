"""A fixture for pytest, which is there as soon as the package is installed.

    def test_parity(parity_check):
        parity_check("checkpoints/mine", dtypes=["bf16"])
"""

from __future__ import annotations

from typing import Any, Callable

import pytest

import onboard


@pytest.fixture
def parity_check() -> Callable[..., onboard.CheckReport]:
    """Returns a function that checks a model, with the arguments of `onboard.check`, and fails if it differs."""

    def check(model: onboard.StrPath, **arguments: Any) -> onboard.CheckReport:
        report = onboard.check(model, **arguments)
        if not report.agrees:
            pytest.fail(f"{model}: {report.verdict}\n{report.summary}", pytrace=False)
        return report

    return check
