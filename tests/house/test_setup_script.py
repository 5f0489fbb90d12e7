"""The set-up takes a CPU build of torch, does nothing twice, and mends what was interrupted."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/setup.py"

PIP_INDEX_OUTPUT = """\
WARNING: pip index is currently an experimental command.
torch (2.15.0)
Available versions: 2.15.0, 2.14.1, 2.14.0, 2.13.0+cpu, 2.13.0, 2.9.1, 2.9.0
  INSTALLED: 2.13.0+cpu
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/setup.py, at work in an empty folder."""
    spec = importlib.util.spec_from_file_location("setup_script", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    venv = tmp_path / ".venv"
    monkeypatch.setattr(module, "VENV", venv)
    monkeypatch.setattr(module, "STAMPS", venv / "set-up")
    monkeypatch.setattr(module, "LOG", venv / "set-up/log.txt")
    (venv / "set-up").mkdir(parents=True)
    monkeypatch.delenv("TORCH", raising=False)
    return module


def report_of(version: str, *requires: str, url: str = "https://files.example/torch.whl") -> dict[str, Any]:
    metadata = {"version": version, "requires_dist": list(requires)}
    return {"install": [{"metadata": metadata, "download_info": {"url": url}}]}


def offer(monkeypatch: pytest.MonkeyPatch, script: ModuleType, reports: dict[str, dict[str, Any]]) -> None:
    """A machine without GPU where pip can install these versions, and PyTorch's CPU index doesn't answer."""
    monkeypatch.setattr(script, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(script, "answers", lambda url: False)
    monkeypatch.setattr(script, "pip", lambda *_: f"Available versions: {', '.join(reports)}")
    monkeypatch.setattr(script, "dry_run", lambda requirement, index: reports[requirement.removeprefix("torch==")])


def test_versions_are_read_from_what_pip_prints(script: ModuleType) -> None:
    assert script.available_versions(PIP_INDEX_OUTPUT)[:4] == ["2.15.0", "2.14.1", "2.14.0", "2.13.0+cpu"]


def test_no_versions_in_an_unreadable_listing(script: ModuleType) -> None:
    assert script.available_versions("ERROR: No matching distribution found for torch") == []


def test_cpu_builds_by_name_come_before_the_newest_of_each_minor_version(script: ModuleType) -> None:
    versions = script.available_versions(PIP_INDEX_OUTPUT)
    assert script.candidates(versions) == ["2.13.0+cpu", "2.15.0", "2.14.1", "2.13.0", "2.9.1"]


@pytest.mark.parametrize(
    "requirement", ["nvidia-cudnn-cu13==9.24; platform_system == 'Linux'", "cuda-toolkit[cublas]", "triton~=3.8"]
)
def test_a_wheel_that_asks_for_cuda_is_no_cpu_build(script: ModuleType, requirement: str) -> None:
    assert not script.is_cpu_build(report_of("2.14.1", "filelock", requirement)["install"][0])


def test_a_wheel_without_cuda_is_a_cpu_build(script: ModuleType) -> None:
    assert script.is_cpu_build(report_of("2.9.1", "filelock", "sympy>=1.13")["install"][0])


def test_the_newest_version_without_cuda_is_taken_and_named(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, plain = report_of("2.14.1", "triton"), report_of("2.9.1", "filelock")
    offer(monkeypatch, script, {"2.14.1": cuda, "2.9.1": plain})
    assert script.choose_torch() == ("torch==2.9.1", [], "CPU build, from files.example")


def test_a_version_that_pip_refuses_is_passed_over(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    local = report_of("2.13.0+cpu", url="file:///opt/my%20wheels/torch-2.13.0%2Bcpu.whl")
    offer(monkeypatch, script, {"2.15.0+cpu": {}, "2.13.0+cpu": local})
    assert script.choose_torch() == ("torch==2.13.0+cpu", [], "CPU build, from /opt/my wheels")


def test_pytorchs_cpu_index_is_used_when_it_answers(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(
        monkeypatch,
        script,
        {"2.15.0+cpu": report_of("2.15.0+cpu", url="https://download.pytorch.org/whl/cpu/torch.whl")},
    )
    monkeypatch.setattr(script, "answers", lambda url: url.startswith(script.TORCH_CPU_INDEX))
    requirement, index, why = script.choose_torch()
    assert requirement == "torch==2.15.0+cpu"
    assert index == ["--extra-index-url", script.TORCH_CPU_INDEX]
    assert why == "CPU build, from download.pytorch.org"


def test_without_any_cpu_build_it_says_what_to_do(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, script, {"2.15.0": report_of("2.15.0", "triton")})
    with pytest.raises(script.SetupError, match=r"no CPU build of torch.*TORCH="):
        script.choose_torch()


def test_a_gpu_takes_pips_own_choice(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "has_nvidia_gpu", lambda: True)
    assert script.choose_torch() == ("torch", [], "nvidia-smi lists a GPU")


def test_torch_says_which(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH", "/tmp/my torch.whl")
    assert script.choose_torch() == ("/tmp/my torch.whl", [], "as TORCH says")


def test_a_step_is_done_once_and_again_when_what_it_is_for_changes(script: ModuleType) -> None:
    done: list[str] = []
    for wanted in ("one", "one", "two", "two"):
        script.once("packages", wanted, lambda wanted=wanted: done.append(wanted))
    assert done == ["one", "two"]


def test_a_step_that_failed_is_done_again(script: ModuleType) -> None:
    def fail() -> None:
        raise script.SetupError("no network")

    done: list[bool] = []
    with pytest.raises(script.SetupError):
        script.once("packages", "one", fail)
    script.once("packages", "one", lambda: done.append(True))
    assert done == [True]


@pytest.mark.parametrize("dev", [False, True])
def test_the_weights_of_what_is_no_default_are_for_tests_only(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, dev: bool
) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(script, "once", lambda *_: None)
    monkeypatch.setattr(script, "fetch_weights", fetched.append)
    script.set_up(dev)
    assert "dora-voice-llm-weights" in fetched
    assert ("dora-voice-vad-weights" in fetched) == dev


def installed(script: ModuleType, name: str, *files: str, record: bool = True) -> Path:
    """A package in .venv with these files on disk; its RECORD lists module.py and its compiled form."""
    site_packages = script.VENV / "lib/python3.11/site-packages"
    metadata = site_packages / f"{name}-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").touch()
    for file in files:
        (site_packages / file).touch()
    if record:
        (metadata / "RECORD").write_text(
            f"{name}.py,sha256=x,1\n__pycache__/{name}.pyc,,\n{name}-1.dist-info/METADATA,,\n"
        )
    return metadata


def test_what_pip_left_half_installed_is_forgotten_and_the_rest_kept(script: ModuleType) -> None:
    whole = installed(script, "whole", "whole.py")
    without_record = installed(script, "killed", "killed.py", record=False)
    without_module = installed(script, "removed")
    script.forget_half_installed()
    assert whole.exists()
    assert not without_record.exists()
    assert not without_module.exists()


def test_a_failed_command_shows_its_errors_and_where_all_of_it_stands(script: ModuleType) -> None:
    noise = "print('Collecting x'); print('ERROR: no such host'); print('hint'); raise SystemExit(3)"
    with pytest.raises(
        script.SetupError, match=r"installing x \(exit code 3\)\n    ERROR: no such host\nall of it: .*log"
    ):
        script.call("installing x", ["python3", "-c", noise])
    assert "Collecting x" in script.LOG.read_text()


def test_without_pythons_venv_package_it_names_the_command(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(script.SetupError, match=r"sudo apt install python3\.\d+-venv"):
        script.make_environment()
