import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dora_voice import arrow
from dora_voice.header import WireError
from dora_voice.messages import Audio, Control, Played, Text

common = {
    "port": st.just("p"),
    "session_id": st.text(min_size=1, max_size=8),
    "segment_id": st.integers(0, 99),
    "seq": st.none() | st.integers(0, 99),
    "fin": st.booleans(),
    "speculative": st.booleans(),
}
samples = arrays(np.float32, st.integers(0, 50), elements=st.floats(-1, 1, width=32))


@given(st.builds(Text, text=st.text(), language=st.none() | st.text(min_size=1), **common))
def test_a_text_comes_over_the_wire_unchanged(text):
    array, metadata = arrow.to_arrow(text)
    assert arrow.from_arrow("p", Text, array, metadata) == text


@given(st.builds(Audio, samples=samples, sample_rate=st.sampled_from([8000, 16000, 48000]), **common))
def test_audio_comes_over_the_wire_unchanged(audio):
    array, metadata = arrow.to_arrow(audio)
    assert array.type == pa.float32()
    read = arrow.from_arrow("p", Audio, array, metadata)
    assert isinstance(read, Audio)
    np.testing.assert_array_equal(read.samples, audio.samples)
    assert (read.sample_rate, read.segment, read.fin) == (audio.sample_rate, audio.segment, audio.fin)


def test_control_and_played_come_over_the_wire_unchanged():
    for message in (
        Control(port="p", verb="commit", session_id="a", segment_id=1, audio_ms=5),
        Played(port="p", samples=2400, session_id="a", segment_id=1, text_end=12, fin=True),
    ):
        assert arrow.from_arrow("p", type(message), *arrow.to_arrow(message)) == message


@pytest.mark.parametrize(
    ("kind", "value", "metadata", "named"),
    [
        (Audio, pa.array([1, 2]), {}, "int64[2]"),
        (Audio, pa.array([0.0, float("nan")], pa.float32()), {}, "NaN"),
        (Audio, pa.array([0.0, None], pa.float32()), {}, "nulls"),
        (Audio, pa.array(["a"]), {}, "string[1]"),
        (Audio, pa.array([0.0], pa.float32()), {"sample_rate": "1000"}, "sample_rate=1000"),
        (Audio, "no array", {}, "str"),
        (Text, pa.array([1.0]), {}, "double[1]"),
        (Text, pa.array(["a", "b"]), {}, "string[2]"),
        (Text, pa.array([None], pa.string()), {}, "string[1]"),
        (Text, pa.array([], pa.string()), {}, "string[0]"),
        (Control, pa.array(["explode"]), {}, "'explode'"),
        (Played, pa.array([-1]), {}, "-1"),
        (Played, pa.array(["x"]), {}, "string[1]"),
    ],
)
def test_what_cannot_be_read_is_named(kind, value, metadata, named):
    with pytest.raises(WireError, match="expected") as error:
        arrow.from_arrow("ear", kind, value, metadata)
    assert "'ear'" in str(error.value)
    assert named in str(error.value)


def test_float64_samples_and_large_strings_of_other_nodes_are_read():
    audio = arrow.from_arrow("p", Audio, pa.array([0.5]), {"sample_rate": "48000"})
    assert isinstance(audio, Audio)
    assert audio.samples.dtype == np.float32
    text = arrow.from_arrow("p", Text, pa.array(["hi"], pa.large_string()), {})
    assert isinstance(text, Text)
    assert text.fin, "a text without seq and fin is complete by itself"
