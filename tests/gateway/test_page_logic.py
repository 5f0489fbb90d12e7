"""What the page's pure modules do, in node's own test runner."""

import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = sorted(str(path) for path in Path(__file__).with_name("page").glob("*.test.mjs"))


def test_the_pages_logic():
    node = shutil.which("node")
    if node is None:
        pytest.fail("node is not installed. Run: sudo apt-get install nodejs")
    done = subprocess.run([node, "--test", *TESTS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
