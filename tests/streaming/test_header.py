import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_voice import header
from dora_voice.header import KEYS, LARGEST_READ, WireError

NATURALS = [key for key, kind in KEYS.items() if kind is header.NATURAL]
FLAGS = [key for key, kind in KEYS.items() if kind is header.FLAG]
TEXTS = [key for key, kind in KEYS.items() if kind in (header.TEXT, header.ID)]

headers = st.fixed_dictionaries(
    {},
    optional={
        **{key: st.integers(0, LARGEST_READ) for key in NATURALS},
        **{key: st.booleans() for key in FLAGS},
        **{key: st.text(min_size=1, max_size=50) for key in TEXTS},
    },
)


@given(headers)
def test_what_is_written_is_all_strings_and_reads_back_the_same(values):
    metadata = header.write("out", values)
    assert all(isinstance(value, str) for value in metadata.values())
    falses = {key for key in FLAGS if values.get(key) is False and key != "fin"}
    assert header.read("in", metadata) == {key: value for key, value in values.items() if key not in falses}


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("fin", True, True),
        ("fin", "TRUE", True),
        ("flush", " False ", False),
        ("seq", 3, 3),
        ("seq", " 12 ", 12),
        ("session_id", 7, "7"),
        ("session_id", "会话/ü", "会话/ü"),
    ],
)
def test_the_reader_is_lenient(key, raw, value):
    assert header.read("in", {key: raw, "their own": object()}) == {key: value}


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        ("seq", "x"),
        ("seq", -1),
        ("seq", "-1"),
        ("seq", 1.5),
        ("seq", "²"),
        ("seq", True),
        ("seq", "9" * 400),
        ("seq", 2**62 + 1),
        ("seq", [1]),
        ("fin", "yes"),
        ("fin", 1),
        ("session_id", ""),
        ("session_id", "x" * 257),
        ("sample_rate", "fast"),
        ("error", {}),
    ],
)
def test_what_cannot_be_read_is_named_with_input_key_value_and_expectation(key, raw):
    with pytest.raises(WireError, match="expected") as error:
        header.read("speech", {key: raw})
    assert "'speech'" in str(error.value)
    assert f"{key}={raw!r}" in str(error.value)


@pytest.mark.parametrize("values", [{"seq": "1"}, {"seq": -1}, {"fin": "true"}, {"sequence": 1}, {"session_id": ""}])
def test_the_writer_is_strict(values):
    with pytest.raises(WireError, match="output 'text'"):
        header.write("text", values)
