"""Templates: their frames are those of the whole request."""

from __future__ import annotations

import pytest
from harness.fastpath import PULL_FIELDS, SEND_FIELDS
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.command import LANGUAGE_PYTHON, RemotingCommand
from rmqpy.remoting.frame import MAX_FRAME, encode_head
from rmqpy.remoting.headers import PullMessageRequestHeader, SendMessageRequestHeaderV2
from rmqpy.remoting.request_template import RequestTemplate, TemplatedRequest, command_of

texts = st.text(max_size=12) | st.text(
    alphabet='\x00\x01\x02\x1f\x7f"\\/%s{}:,aé\u2028\ud800\U0001f600'
)
numbers = st.integers(-(2**31), 2**31 - 1)


def send(topic: str, broker_name: str) -> RemotingCommand:
    names = {"a": "%s", "b": topic, "n": broker_name}
    header = SendMessageRequestHeaderV2.decode({**SEND_FIELDS, **names})
    command = RemotingCommand.request(310, header)
    command.language = LANGUAGE_PYTHON
    return command


@given(texts, texts, numbers, numbers, texts, st.integers(0, 2**31 - 1), st.sampled_from([0, 2]))
def test_the_head_is_that_of_the_whole_request(
    topic: str, broker: str, queue_id: int, flag: int, properties: str, opaque: int, bits: int
) -> None:
    template = RequestTemplate(send(topic, broker), ("h", "e"), ("i",))
    request = TemplatedRequest(template, (flag, queue_id, properties), b"body")
    whole = command_of(request)
    assert (whole.ext_fields["i"], whole.body) == (properties, b"body")
    assert template.head(request.values, 4, opaque, bits) == encode_head(whole, 4, opaque, bits)


@given(texts, numbers)
def test_fields_with_long_names_are_found(expression: str, offset: int) -> None:
    header = PullMessageRequestHeader.decode(PULL_FIELDS)
    template = RequestTemplate(
        RemotingCommand.request(11, header), ("queueOffset",), ("subscription",)
    )
    request = TemplatedRequest(template, (offset, expression), b"")
    assert template.head(request.values, 0, 7, 0) == encode_head(request.command(), 0, 7, 0)


def test_a_request_that_is_too_large_is_refused() -> None:
    template = RequestTemplate(send("T", "a"), ("e",), ("i",))
    with pytest.raises(RequestRejectedError, match="a frame of code 310"):
        template.head((0, ""), MAX_FRAME, 1, 0)
