"""Address patterns, permissions and access files, following the rules of Java's ACL 1.0."""

from __future__ import annotations

import pytest
from attrs import evolve

from rmqpy.acl.address_patterns import any_matches, parse_pattern, parse_patterns
from rmqpy.acl.plain_acl_file import (
    AccessFile,
    PlainAccount,
    format_access_file,
    parse_access_file,
)
from rmqpy.acl.rules import ANY, DENY, PUB, SUB, RequiredPermission, parse_right
from rmqpy.model.errors import ConfigError

MATCHING = [
    ("*", "8.8.8.8", True),
    ("*.*.*.*", "8.8.8.8", True),
    ("*:*:*:*:*:*:*:*", "::1", True),
    ("", "8.8.8.8", False),
    ("  ", "8.8.8.8", False),
    ("10.0.0.1", "10.0.0.1", True),
    ("10.0.0.1", "10.0.0.11", False),
    ("10.0.0.1", "::ffff:10.0.0.1", True),
    ("10.0.0.1,10.0.0.7", "10.0.0.7", True),
    ("10.0.0.1,10.0.0.7", "10.0.0.2", False),
    ("192.168.0.{1,2,3}", "192.168.0.3", True),
    ("192.168.0.{1,2,3}", "192.168.0.4", False),
    ("192.168.*.*", "192.168.7.9", True),
    ("192.168.*.*", "192.169.7.9", False),
    ("192.168.0.*", "192.168.0.255", True),
    ("192.168.0.1-10", "192.168.0.10", True),
    ("192.168.0.1-10", "192.168.0.11", False),
    ("192.168.1-3.*", "192.168.2.200", True),
    ("192.168.1-3.*", "192.168.4.200", False),
    ("1050:0:0:0:5:600:300c:326b", "1050::5:600:300c:326b", True),
    ("1050::0005:0600:300c:{326b,326c}", "1050::5:600:300c:326c", True),
    ("1050:0000:0000:0000:0005:0600:300c:1-20", "1050::5:600:300c:1f", True),
    ("1050:0000:0000:0000:0005:0600:300c:1-20", "1050::5:600:300c:21", False),
    ("1050:0000:*:*:*:*:*:*", "1050::5:600:300c:21", True),
    ("10.0.0.1", "no address", False),
]


@pytest.mark.parametrize(("pattern", "address", "matches"), MATCHING)
def test_patterns_match_as_in_java(pattern: str, address: str, matches: bool) -> None:
    assert parse_pattern(pattern).matches(address) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        "10.0.0",
        "10.0.0.256",
        "10.0.0.9-1",
        "10.*.0.1",
        "10.1-3.0.1",
        "host.example",
        "10.0.{1,2}.1",
        "10.0.0.1,nowhere",
        "-1.0.0.0",
        "1:2:3:4:5:6:7",
    ],
)
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError):
        parse_pattern(pattern)


def test_a_list_matches_if_any_pattern_does() -> None:
    patterns = parse_patterns(["10.0.0.1", "192.168.*.*"])
    assert any_matches(patterns, "192.168.3.4")
    assert not any_matches(patterns, "10.0.0.2")


def test_permissions_are_javas_texts_and_other_texts_deny() -> None:
    texts = ["PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY", "ANY", "pub", "", None]
    assert [parse_right(text) for text in texts] == [
        PUB,
        SUB,
        PUB | SUB,
        PUB | SUB,
        DENY,
        DENY,
        DENY,
        DENY,
        DENY,
    ]


PLAIN = PlainAccount(access_key="key-of-a", secret_key="secret-of-a")


def test_entries_override_the_defaults_and_deny_overrides_all() -> None:
    account = evolve(
        PLAIN,
        default_topic_perm="SUB",
        topic_perms=("A=PUB", "B=DENY", "C=PUB|SUB"),
        group_perms=("g=SUB",),
    ).account("f")
    assert (
        account.lacks(
            [
                RequiredPermission("A", PUB),
                RequiredPermission("C", SUB),
                RequiredPermission("other", SUB),
            ]
        )
        is None
    )
    for resource, right in (("A", SUB), ("B", PUB), ("B", ANY), ("other", PUB), ("%RETRY%h", SUB)):
        assert account.lacks([RequiredPermission(resource, right)]) is not None
    assert (
        account.lacks([RequiredPermission("%RETRY%g", SUB), RequiredPermission("C", ANY)]) is None
    )


def test_the_entries_of_an_administrator_apply() -> None:
    unrestricted = evolve(PLAIN, admin=True).account("f")
    assert unrestricted.lacks([RequiredPermission("A", PUB), RequiredPermission("A", 0)]) is None
    restricted = evolve(PLAIN, admin=True, topic_perms=("A=PUB",)).account("f")
    assert restricted.lacks([RequiredPermission("A", PUB)]) is None
    assert restricted.lacks([RequiredPermission("B", PUB)]) == RequiredPermission("B", PUB)


TEXT = """\
# The file of Java's distribution, in both YAML styles.
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    topicPerms: [topicA=DENY, 'topicB=PUB|SUB']
  - {accessKey: rocketmq2, secretKey: 012345678, whiteRemoteAddress: 192.168.1.*, admin: true}
dataVersion: [{counter: 3, timestamp: 1700000000000}]
"""


def test_a_file_is_parsed_and_formatted() -> None:
    file = parse_access_file(TEXT, "f")
    assert file.white == ("10.10.103.*",)
    assert file.version == (3, 1700000000000)
    first, second = file.accounts
    assert (first.secret_key, second.secret_key) == ("12345678", "012345678")
    assert first.topic_perms == ("topicA=DENY", "topicB=PUB|SUB")
    assert (first.admin, second.admin) == (False, True)
    assert parse_access_file(format_access_file(file), "f") == file
    assert "12345678" not in repr(file)


def test_a_change_increments_the_version() -> None:
    file = parse_access_file(TEXT, "f").with_account(PLAIN, 5)
    assert file.version == (4, 5)
    assert [each.access_key for each in file.accounts] == ["RocketMQ", "rocketmq2", "key-of-a"]
    assert file.without_account("RocketMQ", 6).find("RocketMQ") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accounts: [{accessKey: short, secretKey: longenough}]", "accessKey"),
        ("accounts: [{accessKey: longenough, secretKey: short}]", "secretKey"),
        ("accounts: [{accessKey: long-key, secretKey: long-one, topicPerm: [A=PUB]}]", "topicPerm"),
        ("accounts: [{accessKey: long-key, secretKey: long-one, topicPerms: [A=PUT]}]", "A=PUT"),
        ("accounts: [{accessKey: long-key, secretKey: long-one, admin: maybe}]", "admin"),
        ("accounts: [{accessKey: long-key, secretKey: long-one, defaultTopicPerm: all}]", "all"),
        ("accounts: [{accessKey: long-key, secretKey: long-one, whiteRemoteAddress: x}]", "x"),
        ("globalWhiteRemoteAddresses: [10.0.0]", "10.0.0"),
        ("globalWhiteRemoteAddresses: everything", "list"),
        ("- a\n- b", "map"),
        ("a: [", "YAML"),
        ("accounts: !!python/object/apply:os.system ['true']", "map"),
    ],
)
def test_an_invalid_file_is_refused_with_the_name_of_the_fault(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^file\.yml.*") as fault:
        parse_access_file(text, "file.yml").rules("file.yml")
    assert message in str(fault.value)


def test_an_empty_file_grants_nothing() -> None:
    assert parse_access_file("", "f") == AccessFile()
    assert parse_access_file("# nothing\n", "f").rules("f").accounts == {}
