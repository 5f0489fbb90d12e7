"""Small vision-language models of transformers: what a picture becomes is what transformers makes of it, or refused."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from session.tiny_model import SIZES
from session.tiny_vision_model import (
    PARTS_ONLY,
    make_tiny_qwen2_vl,
    make_tiny_vision_model,
    picture,
    qwen2_vl_processor,
)
from transformers import AutoModelForImageTextToText, AutoProcessor, LlamaConfig, LlamaForCausalLM

from dora_voice_session import hf_vision, picture_file
from dora_voice_session.hf_model import HfModel, load
from dora_voice_session.hf_vision import Vision
from dora_voice_session.picture_probe import check_pictures
from dora_voice_session.picture_token import MARK_BEGIN, PictureToken
from dora_voice_session.schema import MediaPart, TextPart

SEEING = ["idefics3", "llava", "aya_vision", "llava_next"]
ALL = [*SEEING, "sliding"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: make_tiny_vision_model(tmp_path_factory.mktemp(kind), kind) for kind in ALL}


@pytest.fixture(scope="module")
def loaded(folders):
    """Tiny models in fp32 by kind, each loaded once."""
    models: dict[str, HfModel] = {}

    def get(kind: str) -> HfModel:
        if kind not in models:
            models[kind] = load(str(folders[kind]), "fp32", "cpu", threads=1)
        return models[kind]

    return get


def image(seed=0, slices=None, **settings):
    return MediaPart(type="image", data=picture(seed, **settings), max_slice_nums=slices)


def text(words):
    return TextPart(type="text", text=words)


def user(*parts):
    return {"role": "user", "content": list(parts)}


def tokens_of(model, *messages):
    return model.tokenize(model.render(messages))


def fresh(model, tokens):
    return model.extend(model.new_cache(), tokens)


def in_transformers(folder, *messages, **images_kwargs):
    """Token ids, and the logits of the next token, of a program that knows transformers alone."""
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    pictures = [part for message in messages for part in message["content"] if isinstance(part, MediaPart)]
    conversation = [
        {
            "role": message["role"],
            "content": [
                {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
                for part in message["content"]
            ],
        }
        for message in messages
    ]
    inputs = processor(
        text=processor.apply_chat_template(conversation, add_generation_prompt=True),
        images=[picture_file.decode(each) for each in pictures] or None,
        return_tensors="pt",
        images_kwargs=images_kwargs,
    )
    with torch.inference_mode():
        return inputs["input_ids"][0].tolist(), model(**inputs).logits[0, -1].numpy()


def ids(model, tokens):
    return model._forward.vision.ids(tokens)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("size", [(32, 32), (96, 64), (40, 150)])
def test_a_conversation_with_pictures_is_what_transformers_makes_of_it(folders, loaded, kind, size):
    model = loaded(kind)
    # So many pieces are cut as the processor cuts by itself.
    said = user(text("Look: "), image(1, 16, size=size), text(" and \n"), image(2, 16), text("th. What is it?"))
    expected_ids, expected = in_transformers(folders[kind], said)
    tokens = tokens_of(model, said)
    assert ids(model, tokens) == expected_ids
    np.testing.assert_allclose(fresh(model, tokens), expected, atol=1e-4)


@pytest.mark.parametrize("kind", SEEING)
def test_a_text_alone_is_what_transformers_makes_of_it(folders, loaded, kind):
    said = user(text("Look, a cat."))
    expected_ids, expected = in_transformers(folders[kind], said)
    tokens = tokens_of(loaded(kind), said)
    assert tokens == expected_ids
    np.testing.assert_allclose(fresh(loaded(kind), tokens), expected, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(kind=st.sampled_from(SEEING), cuts=st.sets(st.integers(1, 150)), backs=st.integers(0, 40))
def test_pictures_in_slices_and_after_a_step_back_equal_pictures_in_one(loaded, kind, cuts, backs):
    model = loaded(kind)
    tokens = tokens_of(model, user(text("A "), image(1), text("b"), image(2, size=(33, 20)), image(1)))
    expected, cache, held = fresh(model, tokens), model.new_cache(), 0
    for end in sorted(cut for cut in cuts if cut < len(tokens)):
        model.extend(cache, tokens[held:end])
        held = end
    np.testing.assert_allclose(model.extend(cache, tokens[held:]), expected, atol=1e-4)
    if backs:
        left = max(0, len(tokens) - backs)
        model.crop(cache, left)
        np.testing.assert_allclose(model.extend(cache, tokens[left:]), expected, atol=1e-4)


@pytest.mark.parametrize("kind", SEEING)
def test_another_picture_has_other_tokens_and_other_logits(loaded, kind):
    model = loaded(kind)
    one, other = (tokens_of(model, user(text("What is it?"), image(seed))) for seed in (1, 2))
    assert ids(model, one) == ids(model, other)
    assert one != other
    assert np.abs(fresh(model, one) - fresh(model, other)).max() > 1e-2


@pytest.mark.parametrize("kind", SEEING)
def test_a_picture_is_looked_at_once_however_many_slices_it_takes(loaded, kind, monkeypatch):
    model, looks = loaded(kind), []
    monkeypatch.setattr(model._forward.vision, "_seen", type(model._forward.vision._seen)())
    look = model._forward.model.get_image_features
    monkeypatch.setattr(model._forward.model, "get_image_features", lambda **inputs: looks.append(1) or look(**inputs))
    tokens, cache = tokens_of(model, user(image(1), image(2), image(1))), model.new_cache()
    for token in tokens:
        model.extend(cache, [token])
    assert len(looks) == 2


def test_what_was_seen_long_ago_makes_room_and_is_seen_again_the_same(loaded, monkeypatch):
    model = loaded("idefics3")
    tokens = tokens_of(model, user(image(1), image(2), image(3)))
    expected, vision = fresh(model, tokens), model._forward.vision
    one = vision._seen[tokens[[isinstance(token, PictureToken) for token in tokens].index(True)].key].nbytes
    monkeypatch.setattr(hf_vision, "LARGEST_SEEN_BYTES", 2 * one)
    monkeypatch.setattr(hf_vision, "MOST_SPELLED", 2)
    assert tokens_of(model, user(image(1), image(2), image(3))) == tokens
    for seed in (4, 5, 6):
        fresh(model, tokens_of(model, user(image(seed))))
    assert sum(seen.nbytes for seen in vision._seen.values()) <= 2 * one
    assert len(vision._spelled) <= 2
    np.testing.assert_allclose(fresh(model, tokens), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "slices", "tiles"),
    [
        *(("idefics3", most, tiles) for most, tiles in [(1, 1), (3, 1), (4, 5), (8, 5), (9, 10), (None, 10), (99, 17)]),
        *(("aya_vision", most, tiles) for most, tiles in [(1, 1), (4, 5), (9, 10), (None, 10)]),
        *(("llava", most, 4) for most in (1, 9)),
    ],
)
def test_a_picture_is_cut_into_at_most_so_many_pieces(loaded, kind, slices, tiles):
    """Beside them there is the whole picture."""
    model = loaded(kind)
    assert model.limits_slices
    tokens = tokens_of(model, user(image(1, slices, size=(200, 200))))
    assert sum(isinstance(token, PictureToken) for token in tokens) == 4 * tiles


def test_a_model_that_cuts_pictures_as_it_likes_says_so(loaded):
    assert loaded("llava_next").takes_pictures
    assert not loaded("llava_next").limits_slices


def test_a_model_that_cuts_all_pictures_into_as_many_pieces_does_not_count_as_one_that_cuts_none(folders):
    """As Idefics2 does."""
    vision = load(str(folders["llava"]), "fp32", "cpu", threads=1)._forward.vision
    vision._processor.image_processor.do_image_splitting = True
    assert not Vision(vision._model, vision._processor).limits_slices


# Text


@pytest.mark.parametrize("kind", ["idefics3", "aya_vision"])
def test_nobody_makes_a_picture_by_writing(loaded, kind):
    model = loaded(kind)
    assert {"<image>", MARK_BEGIN} <= set(model.special_texts)


def test_a_template_that_takes_only_parts_gets_texts_as_parts(tmp_path):
    model = load(str(make_tiny_vision_model(tmp_path, "llava", chat_template=PARTS_ONLY)), "fp32", "cpu", threads=1)
    rendered = model.render([{"role": "system", "content": "Be."}, user(text("a"), text("b"))])
    assert rendered.startswith("<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\nab<|im_end|>\n")


def test_a_template_that_leaves_pictures_out_is_noticed(loaded, monkeypatch):
    model = loaded("llava")
    monkeypatch.setattr(model._tokenizer, "chat_template", "{{ messages[0].content[0].text }}")
    with pytest.raises(ValueError, match="0 times '<image>' for 1 pictures"):
        model.render([user(text("a"), image())])


def test_a_model_holds_no_picture_that_nobody_has(loaded):
    model = loaded("llava")
    gc.collect()
    before = len(model._pictures)
    shown = image(77)
    model.render([user(shown)])
    assert len(model._pictures) == before + 1
    del shown
    gc.collect()
    assert len(model._pictures) <= before


# Loading


@pytest.mark.parametrize(("dtype", "bound"), [("bf16", 1.0), ("int4", 6.0)])
@pytest.mark.parametrize("kind", ["idefics3", "llava"])
def test_a_narrower_format_sees_the_same(folders, loaded, kind, dtype, bound):
    rounded = load(str(folders[kind]), dtype, "cpu", threads=1)
    assert (rounded.dtype, rounded.takes_pictures) == (dtype, True)
    tokens = tokens_of(rounded, user(text("What is it?"), image(1)))
    near, exact = fresh(rounded, tokens), fresh(loaded(kind), tokens)
    assert 0 < np.abs(near - exact).max() < bound


def test_a_model_with_positions_of_its_own_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(AutoProcessor, "from_pretrained", lambda *args, **kwargs: qwen2_vl_processor())
    with pytest.raises(ValueError, match="type 'qwen2_vl' can't hold a conversation with pictures: position_ids would"):
        load(str(make_tiny_qwen2_vl(tmp_path)), "fp32", "cpu", threads=1)


@pytest.mark.parametrize("own", [{}, {"attention_mask": {"full": None}}, {"block_ids": torch.zeros(1, 3)}])
def test_a_model_with_an_attention_of_its_own_is_refused(folders, monkeypatch, own):
    """As Gemma's, in which the tokens of a picture see those after them."""
    model = load(str(folders["llava"]), "fp32", "cpu", threads=1)
    decoder = model._forward.model.get_decoder()
    compute = decoder.forward
    monkeypatch.setattr(
        decoder, "forward", lambda **given: compute(inputs_embeds=given["inputs_embeds"], **cache(given))
    )
    decoder.register_forward_pre_hook(
        lambda _, args, given: (args, given | (own if is_processors(given) else {})), with_kwargs=True
    )

    def cache(given):
        return {name: given[name] for name in ("cache", "use_cache") if name in given}

    def is_processors(given):
        return given["attention_mask"] is not None

    def check():
        check_pictures(model._forward, model._forward.vision, model.tokenize)

    if own:
        with pytest.raises(ValueError, match=f"'llava' can't hold .* pictures: {next(iter(own))} would be"):
            check()
    else:
        check()


@pytest.mark.parametrize(
    ("method", "wrong", "what"),
    [
        ("_look_at", lambda seen: seen.flip(0), "inputs_embeds"),
        ("tokens", lambda tokens: [*tokens, 5], "its tokens"),
        ("embed", lambda embeddings: embeddings.roll(1, 1), "inputs_embeds"),
    ],
)
def test_a_model_that_sees_something_else_than_in_transformers_is_refused(folders, monkeypatch, method, wrong, what):
    right = getattr(Vision, method)
    monkeypatch.setattr(Vision, method, lambda vision, given: wrong(right(vision, given)))
    with pytest.raises(ValueError, match=f"'idefics3' can't hold a conversation with pictures: {what} would be"):
        load(str(folders["idefics3"]), "fp32", "cpu", threads=1)


def test_a_processor_that_cannot_be_loaded_says_what_is_missing(folders, monkeypatch):
    def fail(*args, **kwargs):
        raise ImportError("needs num2words")

    monkeypatch.setattr(AutoProcessor, "from_pretrained", fail)
    with pytest.raises(ValueError, match=r"processor can't be loaded: needs num2words. .* torchvision"):
        load(str(folders["llava"]), "fp32", "cpu", threads=1)


def test_a_model_that_cannot_be_asked_what_it_sees_is_refused(folders, loaded):
    processor = loaded("llava")._forward.vision._processor
    with pytest.raises(ValueError, match="model type 'llama' has no `get_image_features`"):
        Vision(LlamaForCausalLM(LlamaConfig(**SIZES)), processor)


def test_a_processor_without_pictures_is_refused(folders, monkeypatch):
    monkeypatch.setattr(AutoProcessor, "from_pretrained", lambda *args, **kwargs: object())
    with pytest.raises(ValueError, match="its processor, object, has no token for pictures"):
        load(str(folders["llava"]), "fp32", "cpu", threads=1)
