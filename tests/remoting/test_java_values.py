"""The iteration order of Java's HashMap, compared with orders that Java printed or sent."""

from __future__ import annotations

from rmqpy.remoting.java_values import hashmap_ordered, java_hash_order

SEND_V2 = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "m", "n"]


def test_one_letter_keys_are_alphabetical() -> None:
    assert java_hash_order(reversed(SEND_V2)) == SEND_V2


def test_a_recorded_registration_has_hash_order() -> None:
    keys = ["brokerName", "brokerAddr", "clusterName", "haServerAddr", "brokerId", "compressed"]
    assert java_hash_order([*keys, "bodyCrc32"]) == [
        "brokerId",
        "bodyCrc32",
        "clusterName",
        "brokerAddr",
        "haServerAddr",
        "compressed",
        "brokerName",
    ]


def test_a_bucket_keeps_the_order_of_insertion() -> None:
    # "Aa" and "BB" have the same hash.
    assert java_hash_order(["Aa", "BB"]) == ["Aa", "BB"]
    assert java_hash_order(["BB", "Aa"]) == ["BB", "Aa"]


def test_growth_changes_the_order() -> None:
    # The hash of a character is its code: bucket 0 has chr(48) of 16 buckets, chr(64) of 32.
    assert java_hash_order(["1", "0"]) == ["0", "1"]
    assert java_hash_order(["A", "0"]) == ["0", "A"]
    letters = [chr(code) for code in range(ord("B"), ord("M"))]
    assert java_hash_order(["0", "A", *letters])[0] == "A"


def test_the_hash_is_computed_from_utf_16_units() -> None:
    assert java_hash_order(["中", "😀", "a"]) == ["a", "😀", "中"]


def test_items_keep_their_values() -> None:
    fields = {"topic": "T", "queueId": "1", "bname": "b"}
    assert list(hashmap_ordered(fields)) == [("queueId", "1"), ("bname", "b"), ("topic", "T")]
    many = {f"key{index}": str(index) for index in range(200)}
    assert dict(hashmap_ordered(many)) == many
