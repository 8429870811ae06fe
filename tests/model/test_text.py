"""Numbers with their nouns, as operators read them."""

from __future__ import annotations

from rmqpy.model.text import count_text


def test_a_count_agrees_with_its_noun() -> None:
    assert [count_text(n, "message") for n in (0, 1, 2)] == [
        "0 messages",
        "1 message",
        "2 messages",
    ]
    assert [count_text(n, "more entry") for n in (1, 2)] == ["1 more entry", "2 more entries"]
    assert count_text(3, "key") == "3 keys"
    assert [count_text(n, "client is", "clients are") for n in (1, 2)] == [
        "1 client is",
        "2 clients are",
    ]
