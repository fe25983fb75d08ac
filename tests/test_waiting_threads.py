"""How threads of OpenMP wait is decided before torch is imported."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("given", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_wait_asleep_unless_the_user_says_otherwise(given: str | None, found: str) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if given is not None:
        variables["OMP_WAIT_POLICY"] = given
    program = "import diffuspec, os; print(os.environ['OMP_WAIT_POLICY'])"
    said = subprocess.check_output([sys.executable, "-c", program], env=variables, text=True)
    assert said == f"{found}\n"
