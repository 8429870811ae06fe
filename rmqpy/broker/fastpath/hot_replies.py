"""The templates of :mod:`.reply_templates` as the C core takes them."""

from __future__ import annotations

from typing import Final

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.fastpath.reply_templates import (
    BINARY_REMARK_LENGTH,
    ReplyField,
    ReplyTemplate,
    pull_template,
    send_template,
)
from rmqpy.broker.fastpath.tables import Cdata
from rmqpy.codec.native import ffi, lib
from rmqpy.remoting.command import SERIALIZE_JSON, SERIALIZE_ROCKETMQ

TEMPLATE_BYTES_MAX: Final = 1024
"""Far below RMQ_REPLY_MAX, which has to hold the numbers too."""

for _field in ReplyField:
    assert getattr(lib, f"RMQ_{_field.name}") == _field, _field


def set_reply_templates(core: Cdata, identity: BrokerContext) -> list[Cdata] | None:
    """Fill ``core.replies``; what is returned has to be kept alive. None: a setting is so long that
    C has no room for the replies.
    """
    alive = []
    for kind, template in (
        (lib.RMQ_SEND_JSON, send_template(identity, SERIALIZE_JSON)),
        (lib.RMQ_SEND_BINARY, send_template(identity, SERIALIZE_ROCKETMQ)),
        (lib.RMQ_PULL_JSON, pull_template(SERIALIZE_JSON)),
        (lib.RMQ_PULL_BINARY, pull_template(SERIALIZE_ROCKETMQ)),
    ):
        text = b"".join(template.literals)
        if len(text) > TEMPLATE_BYTES_MAX:
            return None
        alive.append(_fill(core.replies[kind], template, text))
    return alive


def _fill(reply: Cdata, template: ReplyTemplate, text: bytes) -> Cdata:
    end = 0
    for number, field in enumerate(template.fields):
        end += len(template.literals[number])
        reply.ends[number] = end
        reply.field[number] = field
    reply.field_count = len(template.fields)
    reply.text_length = len(text)
    reply.binary = template.binary
    if template.binary:
        # Positions in front of the remark's end are those of the whole header but for the opaque.
        remark_at = BINARY_REMARK_LENGTH
        remark = int.from_bytes(text[remark_at - 4 : remark_at])
        reply.ext_length_at = remark_at + 4 + remark
    kept = ffi.from_buffer("uint8_t[]", text)
    reply.text = kept
    return kept
