"""The history: who said what, in which order, and what of it counts."""

from __future__ import annotations

import pytest

from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import ChatMessage, MediaPart, StreamingRequest, TextPart
from dora_voice_session.turns import Turn, Turns


def user(text):
    return ChatMessage(role="user", content=text)


def assistant(text):
    return ChatMessage(role="assistant", content=text)


def conversation(*turns):
    """Turns of what the user said and what was replied, with the ids 0, 1, 2 ..."""
    return Turns(Turn(i, [user(text)], reply) for i, (text, reply) in enumerate(turns))


def said(turns, until=None):
    return [f"{message['role'][0]}:{message['content']}" for message in turns.messages(until)]


def test_what_was_said_and_answered_in_the_order_of_turns():
    assert said(conversation(("Hi.", "Hello."), ("Bye.", "Ciao."))) == ["u:Hi.", "a:Hello.", "u:Bye.", "a:Ciao."]
    assert said(Turns()) == []


def test_up_to_what_was_said_in_a_turn_but_not_its_reply():
    turns = conversation(("Hi.", "Hello."), ("Bye.", "Ciao."), ("Still there?", None))
    assert said(turns, turns.find(1)) == ["u:Hi.", "a:Hello.", "u:Bye."]


@pytest.mark.parametrize("reply", [None, "", " \n"])
def test_after_a_reply_of_which_nothing_is_left_the_message_goes_on(reply):
    turns = conversation(("How is the sea?", reply), ("I mean the lake.", "Calm."))
    assert said(turns) == ["u:How is the sea? I mean the lake.", "a:Calm."]


def test_a_message_in_pieces_is_joined_as_it_is():
    turns = Turns()
    for piece in ("Hel", "", "lo, 世"):
        turns.add([user(piece)], is_open=True)
    turns.add([user("界")])
    assert said(turns) == ["u:Hello, 世界"]
    turns.add([user("And?")])
    assert said(turns) == ["u:Hello, 世界 And?"]
    assert len(turns) == 1


def test_only_the_first_of_several_messages_goes_on_with_the_open_one():
    turns = Turns()
    turns.add([user("Hel")], is_open=True)
    turns.add([user("lo"), user("you")], is_open=True)
    assert [message.text for message in turns.last.messages] == ["Hello", "you"]
    turns.add([user("r dog")])
    assert said(turns) == ["u:Hello your dog"]


def test_a_message_of_another_role_ends_the_open_one():
    turns = Turns()
    turns.add([user("Hel")], is_open=True)
    turns.add([assistant("Yes?"), user("lo")])
    assert said(turns) == ["u:Hel", "a:Yes?", "u:lo"]


def test_a_conversation_that_was_had_elsewhere_comes_in_turns():
    turns = Turns()
    turns.add([assistant("I am here."), user("Hi."), user("Ho."), assistant("Hello."), user("Bye.")])
    assert said(turns) == ["a:I am here.", "u:Hi. Ho.", "a:Hello.", "u:Bye."]
    assert [turn.turn_id for turn in turns] == [0, 1, 2]
    assert turns.last.reply is None


def test_a_reply_that_was_had_elsewhere_may_come_in_pieces():
    turns = Turns()
    turns.add([user("Hi."), assistant("Hel")], is_open=True)
    turns.add([assistant("lo.")])
    turns.add([assistant("Still here.")])
    assert said(turns) == ["u:Hi.", "a:Hello. Still here."]


def test_a_turn_that_comes_late_is_put_where_it_belongs():
    turns = conversation(("one", "1"))
    turns.add([user("seven")], turn_id=7)
    turns.add([user("three")], turn_id=3)
    assert said(turns) == ["u:one", "a:1", "u:three seven"]
    assert turns.last.turn_id == 7
    assert turns.before(turns.last) == 2
    assert turns.before(turns.find(0)) == 0


def test_what_is_said_without_a_number_goes_on_until_it_was_answered():
    turns = Turns()
    turns.add([user("a")])
    turns.add([user("b")])
    assert [turn.turn_id for turn in turns] == [0]
    turns.last.reply = ""
    turns.add([user("c")])
    assert [turn.turn_id for turn in turns] == [0, 1]
    turns.last.reply = "ok"
    turns.add([user("d")], new_id=40)
    assert [turn.turn_id for turn in turns] == [0, 1, 40]


def test_a_turn_that_was_answered_takes_no_more():
    turns = conversation(("Hi.", "Hello."))
    with pytest.raises(RefusedError, match="turn 0 was answered already") as refused:
        turns.add([user("Ho.")], turn_id=0)
    assert refused.value.code == "bad_request"
    assert said(turns) == ["u:Hi.", "a:Hello."]


def test_messages_that_one_turn_cannot_take_together_are_refused_together():
    turns = Turns()
    with pytest.raises(RefusedError, match="turn 3 was answered already"):
        turns.add([user("Hi."), assistant("Hello."), user("Ho.")], turn_id=3)
    assert said(turns) == []


@pytest.mark.parametrize("reply", [None, "1"])
def test_what_is_said_now_is_not_put_into_the_past(reply):
    turns = Turns([Turn(3, [user("a")], "1"), Turn(7, [user("b")], reply)])
    with pytest.raises(RefusedError, match=r"turn 5: .* last one, 7") as refused:
        turns.add([user("c")], new_id=5)
    assert refused.value.code == "bad_request"
    assert [turn.turn_id for turn in turns] == [3, 7]
    turns.add([user("c")], new_id=7)
    assert said(turns)[-1].endswith("c")


def test_a_guess_that_one_turn_cannot_take_leaves_the_one_before():
    turns = Turns()
    turns.revise([user("a")], 4, is_open=True)
    with pytest.raises(RefusedError):
        turns.revise([user("b"), assistant("1"), user("c")], 4)
    assert said(turns) == ["u:a"]


def test_a_turn_asks_for_what_its_request_says_and_a_guess_in_its_place_does_not():
    turns = Turns([Turn(0, [user("a")], is_open=True)])
    assert turns.last.asked("enable_thinking") is None
    turns.last.request = StreamingRequest(session_id="s", messages=[user("a")], enable_thinking=True)
    assert turns.last.asked("enable_thinking")
    assert turns.last.asked("omni_mode") is None
    assert turns.copy().last.asked("enable_thinking")
    turns.revise([user("b")], 0)
    assert turns.last.asked("enable_thinking") is None


def test_a_guess_gives_way_to_a_better_one_until_it_is_closed():
    turns = conversation(("a", "1"))
    assert turns.revise([user("How is the see")], 4, is_open=True)
    assert turns.revise([user("How is the sea?")], 4, is_open=True)
    assert said(turns) == ["u:a", "a:1", "u:How is the sea?"]
    assert turns.revise([user("How was the sea?")], 4)
    assert not turns.revise([user("Who was the sea?")], 4)
    assert not turns.revise([user("b")], 0)
    assert said(turns) == ["u:a", "a:1", "u:How was the sea?"]


def test_no_number_means_the_last_turn():
    turns = conversation(("a", None), ("b", None))
    assert turns.find(None) is turns.last is turns.find(1)
    assert turns.find(9) is None
    assert Turns().find(None) is None


def test_a_dropped_turn_never_happened():
    turns = conversation(("a", "1"), ("b", "2"), ("c", "3"))
    assert turns.drop(1)
    assert said(turns) == ["u:a", "a:1", "u:c", "a:3"]
    assert turns.drop(None)
    assert said(turns) == ["u:a", "a:1"]
    assert not turns.drop(1)
    assert turns.drop(None)
    assert not turns.drop(None)


def test_the_oldest_turn_can_go():
    turns = conversation(("a", "1"), ("b", "2"))
    assert said(turns.without_oldest(1)) == ["u:b", "a:2"]
    assert said(turns) == ["u:a", "a:1", "u:b", "a:2"]


@pytest.mark.parametrize(
    ("heard", "left"),
    [
        (0, ""),
        (2, ""),
        (3, "The"),
        (8, "The"),
        (9, "The sea’s"),
        (13, "The sea’s"),
        (14, "The sea’s fine"),
        (15, "The sea’s fine"),
        (16, "The sea’s fine 🙂"),
        (999, "The sea’s fine 🙂"),
    ],
)
def test_a_reply_is_cut_to_the_whole_words_that_were_heard(heard, left):
    turns = conversation(("How is it?", "The sea’s fine 🙂"))
    assert turns.cut(None, heard)
    assert said(turns) == ["u:How is it?", *([f"a:{left}"] if left else [])]


def test_there_is_nothing_to_cut_without_a_reply():
    turns = conversation(("a", None))
    assert not turns.cut(None, 3)
    assert not turns.cut(9, 3)
    assert not Turns().cut(None, 3)


def test_a_reply_is_dropped_by_its_own_id_and_leaves_the_turn():
    turns = Turns([Turn(1, [user("a")], "one", reply_id=2), Turn(3, [user("b")], "two", reply_id=3)])
    assert turns.drop(2)
    assert said(turns) == ["u:a b", "a:two"]
    assert not turns.drop(2)
    assert turns.find(1).reply is None


def test_a_copy_knows_nothing_of_what_comes_later():
    turns = conversation(("a", None))
    turns.last.is_open = True
    copy = turns.copy()
    turns.add([user("b")])
    turns.last.reply = "1"
    assert said(copy) == ["u:a"]
    assert copy.last.is_open
    copy.drop(None)
    assert said(turns) == ["u:ab", "a:1"]


def text(words):
    return TextPart(type="text", text=words)


CAT, DOG = MediaPart(type="image", data="Y2F0"), MediaPart(type="image", data="ZG9n")


def told(*messages, is_open=False):
    """Content of the only message that comes of these."""
    turns = Turns()
    for message in messages:
        turns.add([message], is_open=is_open)
        if not is_open:
            turns.add([user("")])
    (only,) = turns.messages()
    return only["content"]


def test_parts_of_text_alone_are_told_as_their_text():
    assert told(user([text("Look, "), text("a cat")])) == "Look, a cat "


def test_pictures_stay_between_the_texts_in_their_order():
    assert told(user([CAT, text("a cat"), text(", a "), DOG])) == [CAT, text("a cat, a "), DOG, text(" ")]


def test_a_message_with_pictures_goes_on_where_it_was():
    assert told(user([CAT]), user("a c"), user([text("at"), DOG, DOG]), is_open=True) == [CAT, text("a cat"), DOG, DOG]


def test_messages_of_one_role_with_pictures_are_told_in_one():
    turns = Turns([Turn(0, [user([CAT])]), Turn(1, [user("And?"), user([DOG])])])
    assert turns.messages() == [{"role": "user", "content": [CAT, text(" And? "), DOG]}]
