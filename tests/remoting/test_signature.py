"""Signatures of requests, equal to those of Java's clients."""

from __future__ import annotations

from rmqpy.acl.address_patterns import parse_pattern
from rmqpy.acl.rules import Account
from rmqpy.acl.signature import Credentials, signature, verify_signature
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder

CREDENTIALS = Credentials("rocketmq2", "12345678")
ACCOUNT = Account(access_key="rocketmq2", secret_key="12345678", white_address=parse_pattern(""))


def test_a_signature_is_that_of_java() -> None:
    """The vector is from AclClientRPCHook of 4.9.7."""
    fields = {"topic": "TopicTest", "AccessKey": "rocketmq2"}
    assert signature("12345678", fields, b"xyz") == "tZCqdxaG/RH6XiJI1k+YsGab78w="


def test_keys_are_ordered_by_utf_16_units() -> None:
    """U+10000, a surrogate pair, sorts before U+FF01 in Java but after it by code points."""
    swapped = signature("12345678", {"\U00010000": "a", "\uff01": "b"}, b"")
    assert swapped == signature("12345678", {"x": "a", "y": "b"}, b"")


def test_a_signed_request_is_verified_after_encoding_and_decoding() -> None:
    request = RemotingCommand(10, ext_fields={"topic": "T", "ü": "ö\0"}, body=b"b")
    for serialize_type in (0, 1):
        request.serialize_type = serialize_type
        (received,) = FrameDecoder().receive(encode_command(CREDENTIALS.signed(request)))
        assert verify_signature(ACCOUNT, received)
        received.ext_fields["_UNIQUE_KEY_QUERY"] = "true"  # It is added after signing.
        assert verify_signature(ACCOUNT, received)
        received.body = b"c"
        assert not verify_signature(ACCOUNT, received)
    assert "AccessKey" not in request.ext_fields


def test_a_query_by_key_is_signed_as_it_is_verified() -> None:
    """Java's broker leaves this field out; with it signed, it refused every query of rmqpy."""
    fields = {"topic": "T", "key": "k", "_UNIQUE_KEY_QUERY": "false"}
    signed = CREDENTIALS.signed(RemotingCommand(12, ext_fields=fields))
    assert signed.ext_fields["_UNIQUE_KEY_QUERY"] == "false"
    assert verify_signature(ACCOUNT, signed)


def test_a_security_token_is_signed_too() -> None:
    token = Credentials("rocketmq2", "12345678", "token")
    signed = token.signed(RemotingCommand(10))
    assert signed.ext_fields["SecurityToken"] == "token"
    assert verify_signature(ACCOUNT, signed)
    signed.ext_fields["SecurityToken"] = "other"
    assert not verify_signature(ACCOUNT, signed)


def test_secrets_are_not_shown() -> None:
    assert "12345678" not in repr(CREDENTIALS) + repr(ACCOUNT)
