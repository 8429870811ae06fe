"""Commands that find messages, print them, and send test messages."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from rmqpy.admin.command import TOPIC, Command, CommandContext, UsageError, option
from rmqpy.admin.commands.offsets import timestamp_of
from rmqpy.admin.commands.tracking import track
from rmqpy.admin.output import Column, CommandResult, OutputTable, java_bool, java_time
from rmqpy.client.core.base_consumer import PullResult, PullStatus
from rmqpy.client.core.message import Message, MessageExt, SendResult, host_address
from rmqpy.client.producer import Producer
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.model.errors import RmqError
from rmqpy.model.names import TOOLS_GROUP
from rmqpy.remoting.bodies import MessageQueue
from rmqpy.remoting.java_values import hashmap_ordered

PAGE = 32
KEPT_BODIES = "rocketmq/msgbodys"
"""The folder for bodies, as in mqadmin; it is below the system's temporary folder."""

_BY_KEY = OutputTable([Column("#Message ID", -50), Column("#QID", 4), Column("#Offset", 40)], [" "])
_SENT = OutputTable(
    [
        Column("#Broker Name", -32),
        Column("#QID", -4),
        Column("#Send Result", -20),
        Column("#MsgId", 0),
    ],
    ["  ", "  ", "    "],
)


async def query_by_id(call: CommandContext) -> CommandResult:
    args = call.args
    ids = [part.strip() for part in args.text("msgId").split(",") if part.strip()]
    if args.has("consumerGroup") and args.has("clientId"):
        return await _consume_directly(call, ids)
    if args.has("sendMessage"):
        if not args.boolean("sendMessage", False):
            return CommandResult([], "")
        return await _resend(call, ids)
    found, texts = [], []
    async with PullConsumer(TOOLS_GROUP, instance=call.admin.instance) as consumer:
        for offset_id in ids:
            message = await consumer.view_message(offset_id)
            found.append(message)
            texts.append(await _described(call, message, with_id=True))
    return CommandResult([message_data(each) for each in found], "\n".join(texts))


async def _consume_directly(call: CommandContext, ids: Sequence[str]) -> CommandResult:
    group, client = call.args.text("consumerGroup"), call.args.text("clientId")
    results, lines = [], []
    async with PullConsumer(TOOLS_GROUP, instance=call.admin.instance) as consumer:
        for offset_id in ids:
            message = await consumer.view_message(offset_id)
            address = host_address(message.stored.store_host)
            result = await call.admin.consume_directly(address, group, client, offset_id)
            results.append(result)
            lines.append(
                f"ConsumeMessageDirectlyResult [order={java_bool(result.order)},"
                f" autoCommit={java_bool(result.auto_commit)},"
                f" consumeResult={result.consume_result}, remark={result.remark or 'null'},"
                f" spentTimeMills={result.spent_time_mills}]"
            )
    return CommandResult(results, "\n".join(lines))


async def _resend(call: CommandContext, ids: Sequence[str]) -> CommandResult:
    results, lines = [], []
    instance = call.admin.instance
    async with (
        PullConsumer(TOOLS_GROUP, instance=instance) as consumer,
        Producer("ReSendMsgById", instance=instance) as producer,
    ):
        for offset_id in ids:
            message = await consumer.view_message(offset_id)
            copy = Message(
                topic=message.topic, body=message.body, tags=message.tags, keys=message.keys
            )
            result = await producer.send(copy)
            results.append(_sent_data(result))
            lines.append(f"prepare resend msg. originalMsgId={offset_id}{_sent_text(result)}")
    return CommandResult(results, "\n".join(lines))


async def query_by_key(call: CommandContext) -> CommandResult:
    async with PullConsumer(TOOLS_GROUP, instance=call.admin.instance) as consumer:
        messages = await consumer.query_by_key(
            call.args.text("topic"), call.args.text("msgKey"), 64
        )
    rows = [[each.msg_id, each.stored.queue_id, each.queue_offset] for each in messages]
    return CommandResult([message_data(each) for each in messages], _BY_KEY.text(rows))


async def query_by_unique_key(call: CommandContext) -> CommandResult:
    args = call.args
    topic, unique_id = args.text("topic"), args.text("msgId")
    async with PullConsumer(TOOLS_GROUP, instance=call.admin.instance) as consumer:
        messages = await consumer.query_by_key(topic, unique_id, PAGE, unique=True)
    messages.sort(key=lambda each: each.stored.store_timestamp_ms)
    if args.has("consumerGroup") and args.has("clientId"):
        return await _consume_directly(call, [each.offset_msg_id for each in messages])
    shown = messages if args.has("showAll") else messages[:1]
    texts = [await _described(call, each, with_id=False) for each in shown]
    data = [message_data(each) for each in shown]
    return CommandResult(data, "\n".join(texts), says_no=not messages)


async def query_by_offset(call: CommandContext) -> CommandResult:
    args = call.args
    queue = MessageQueue(args.text("topic"), args.text("brokerName"), args.number("queueId", 0))
    offset = args.number("offset", 0)
    async with PullConsumer(TOOLS_GROUP, instance=call.admin.instance) as consumer:
        result = await consumer.pull(queue, offset, 1)
    found = [each for each in result.messages if each.queue_offset == offset]
    if not found:
        return CommandResult([], "", says_no=True)
    text = await _described(call, found[0], with_id=True, page=result)
    return CommandResult([message_data(found[0])], text)


async def print_messages(call: CommandContext) -> CommandResult:
    topic, args = call.args.text("topic"), call.args
    show_body = args.boolean("printBody", True)
    async with PullConsumer(TOOLS_GROUP, instance=call.admin.instance) as consumer:
        for queue in await consumer.queues(topic):
            begin, end = await _range(call, consumer, queue)
            call.show(f"minOffset={begin}, maxOffset={end}, {queue_text(queue)}")
            async for page in _pages(call, consumer, queue, begin, end):
                if page.status is PullStatus.NO_MATCHED_MSG:
                    call.show(_page_text(queue, "no matched msg", page))
                for message in page.messages:
                    call.show(_line(call, message, show_body, page))
            call.show("-" * 56)
    return CommandResult(None, "")


async def print_queue(call: CommandContext) -> CommandResult:
    args = call.args
    queue = MessageQueue(args.text("topic"), args.text("brokerName"), args.number("queueId", 0))
    show, show_body = args.boolean("print", False), args.boolean("printBody", False)
    tags: Counter[str] = Counter()
    async with PullConsumer(TOOLS_GROUP, instance=call.admin.instance) as consumer:
        begin, end = await _range(call, consumer, queue)
        async for page in _pages(call, consumer, queue, begin, end):
            if page.status is not PullStatus.FOUND:
                break
            for message in page.messages:
                tags.update([message.tags] if message.tags else [])
                if show:
                    call.show(_line(call, message, show_body, page))
    counted = tags.most_common() if args.boolean("calculate", False) else []
    lines = [f"Tag: {tag:<30} Count: {count}" for tag, count in counted]
    return CommandResult(dict(counted), "\n".join(lines))


async def consume_messages(call: CommandContext) -> CommandResult:
    args = call.args
    count = args.number("MessageNumber", 128)
    if count <= 0:
        raise UsageError("Please input a positive messageNumber!")
    if args.has("queueId") and not args.has("brokerName"):
        raise UsageError("Please set the brokerName before queueId!")
    if args.has("offset") and not args.has("queueId"):
        raise UsageError("Please set queueId before offset!")
    topic = args.text("topic")
    group = args.optional("consumerGroup") or TOOLS_GROUP
    data: list[dict[str, object]] = []
    async with PullConsumer(group, instance=call.admin.instance) as consumer:
        queues = await consumer.queues(topic)
        if args.has("queueId"):
            queues = [MessageQueue(topic, args.text("brokerName"), args.number("queueId", 0))]
        for queue in queues:
            begin, end = await _range(call, consumer, queue)
            begin = max(begin, args.number("offset", 0))
            left = count - len(data)
            if end - begin > left:
                which = f"older {left} message of the {queue.queue_id} queue"
                if args.has("queueId"):
                    which = f"oldler {left} message"  # as mqadmin spells it
                call.show(f"The {which} will be provided")
            async for page in _pages(call, consumer, queue, begin, min(end, begin + left)):
                if page.messages:
                    call.show("Consume ok")
                for message in page.messages[: count - len(data)]:
                    call.show(_line(call, message, True, page))
                    data.append(message_data(message))
            if len(data) >= count:
                break
    return CommandResult(data, "")


async def send_message(call: CommandContext) -> CommandResult:
    args = call.args
    topic = args.text("topic")
    queue = None
    if args.has("qid"):
        if not args.has("broker"):
            raise UsageError("Broker name must be set if the queue is chosen!")
        queue = MessageQueue(topic, args.text("broker"), args.number("qid", 0))
    message = Message(
        topic=topic,
        body=args.text("body").encode(),
        tags=args.optional("tags"),
        keys=args.optional("key") or "",
    )
    async with Producer("ADMIN_SENDER", instance=call.admin.instance) as producer:
        result = await producer.send(message, queue)
    row = [result.queue.broker_name, result.queue.queue_id, result.status.value, result.msg_id]
    return CommandResult(_sent_data(result), _SENT.text([row]))


# ------------------------------------------------------------------------------ read queues


async def _range(
    call: CommandContext, consumer: PullConsumer, queue: MessageQueue
) -> tuple[int, int]:
    """Return (first offset, end offset) of the whole queue, or of the span of time to read."""
    begin, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
    if call.args.has("beginTimestamp"):
        moment = timestamp_of(call.args.text("beginTimestamp"))
        begin = await consumer.search_offset(queue, moment)
    if call.args.has("endTimestamp"):
        moment = timestamp_of(call.args.text("endTimestamp"))
        end = await consumer.search_offset(queue, moment)
    return begin, end


async def _pages(
    call: CommandContext, consumer: PullConsumer, queue: MessageQueue, begin: int, end: int
) -> AsyncIterator[PullResult]:
    expression = call.args.optional("subExpression") or "*"
    offset = begin
    while offset < end:
        page = await consumer.pull(queue, offset, min(PAGE, end - offset), expression)
        yield page
        if page.status in (PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL):
            call.show(_page_text(queue, "print msg finished", page))
            return
        offset = page.next_begin_offset


# ------------------------------------------------------------------------------ render as text


async def _described(
    call: CommandContext, message: MessageExt, *, with_id: bool, page: PullResult | None = None
) -> str:
    stored = message.stored
    head = [("OffsetID:", message.offset_msg_id)] if with_id else []
    pairs = [
        *head,
        ("Topic:", stored.topic),
        ("Tags:", f"[{message.tags or 'null'}]"),
        ("Keys:", f"[{message.keys or 'null'}]"),
        ("Queue ID:", stored.queue_id),
        ("Queue Offset:", stored.queue_offset),
        ("CommitLog Offset:", stored.physical_offset),
        ("Reconsume Times:", stored.reconsume_times),
        ("Born Timestamp:", java_time(stored.born_timestamp_ms)),
        ("Store Timestamp:", java_time(stored.store_timestamp_ms)),
        ("Born Host:", host_address(stored.born_host)),
        ("Store Host:", host_address(stored.store_host)),
        ("System Flag:", stored.sys_flag),
        ("Properties:", _map_text(message, page)),
        ("Message Body Path:", _kept_body(message)),
    ]
    lines = [f"{name:<20} {value}" for name, value in pairs]
    tracks = await track(call, message)
    if not tracks:
        return "\n".join([*lines, "", "", "WARN: No Consumer"])
    return "\n".join([*lines, "", "", "".join(each.text for each in tracks)])


def _kept_body(message: MessageExt) -> Path:
    """Write the body to a file, for tools that need the bytes, and return its path."""
    folder = Path(tempfile.gettempdir()) / KEPT_BODIES
    folder.mkdir(parents=True, exist_ok=True)
    # The id comes from a producer, so only letters and digits may become part of a path.
    name = "".join(letter for letter in message.msg_id if letter.isalnum()) or "body"
    path = folder / name
    path.write_bytes(_body(message))
    return path


def _body(message: MessageExt) -> bytes:
    try:
        return message.body
    except RmqError:
        return message.stored.body  # It cannot be decompressed.


def queue_text(queue: MessageQueue) -> str:
    """Return the text of Java's MessageQueue.toString."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name},"
        f" queueId={queue.queue_id}]"
    )


def _page_text(queue: MessageQueue, what: str, page: PullResult) -> str:
    return (
        f"{queue_text(queue)} {what}. status={page.status.value}, offset={page.next_begin_offset}"
    )


def _line(call: CommandContext, message: MessageExt, show_body: bool, page: PullResult) -> str:
    charset = call.args.optional("charsetName") or "UTF-8"
    body = "NOT PRINT BODY"
    if show_body:
        try:
            body = _body(message).decode(charset, "replace")
        except LookupError:
            raise UsageError(f"--charsetName {charset} is not known") from None
    return f"MSGID: {message.msg_id} {_message_text(message, page)} BODY: {body}"


def _message_text(message: MessageExt, page: PullResult) -> str:
    """Return the text of Java's MessageExt.toString."""
    stored = message.stored
    signed = [byte - 256 if byte > 127 else byte for byte in _body(message)]
    return (
        f"MessageExt [brokerName={message.queue.broker_name}, queueId={stored.queue_id},"
        f" storeSize={stored.size}, queueOffset={stored.queue_offset}, sysFlag={stored.sys_flag},"
        f" bornTimestamp={stored.born_timestamp_ms}, bornHost=/{host_address(stored.born_host)},"
        f" storeTimestamp={stored.store_timestamp_ms},"
        f" storeHost=/{host_address(stored.store_host)}, msgId={message.offset_msg_id},"
        f" commitLogOffset={stored.physical_offset}, bodyCRC={stored.body_crc},"
        f" reconsumeTimes={stored.reconsume_times},"
        f" preparedTransactionOffset={stored.prepared_transaction_offset},"
        f" toString()=Message{{topic='{stored.topic}', flag={stored.flag},"
        f" properties={_map_text(message, page)}, body={signed}, transactionId='null'}}]"
    )


def _map_text(message: MessageExt, page: PullResult | None) -> str:
    """Return the properties with those that Java's client adds to a pulled message."""
    found = dict(message.properties)
    if page is not None:
        found |= {"MIN_OFFSET": str(page.min_offset), "MAX_OFFSET": str(page.max_offset)}
    return f"{{{', '.join(f'{key}={value}' for key, value in hashmap_ordered(found))}}}"


def message_data(message: MessageExt) -> dict[str, object]:
    """Return a message as plain values. The body is text if it is UTF-8, else it is in hex."""
    stored, body = message.stored, _body(message)
    try:
        body_field: dict[str, object] = {"body": body.decode()}
    except UnicodeDecodeError:
        body_field = {"bodyHex": body.hex()}
    return {
        "topic": stored.topic,
        "brokerName": message.queue.broker_name,
        "queueId": stored.queue_id,
        "queueOffset": stored.queue_offset,
        "physicalOffset": stored.physical_offset,
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "bornTimestamp": stored.born_timestamp_ms,
        "storeTimestamp": stored.store_timestamp_ms,
        "reconsumeTimes": stored.reconsume_times,
        "sysFlag": stored.sys_flag,
        "properties": dict(message.properties),
        **body_field,
    }


def _sent_data(result: SendResult) -> dict[str, object]:
    return {
        "status": result.status.value,
        "msgId": result.msg_id,
        "offsetMsgId": result.offset_msg_id,
        "queue": result.queue,
        "queueOffset": result.queue_offset,
    }


def _sent_text(result: SendResult) -> str:
    """Return the text of Java's SendResult.toString."""
    return (
        f"SendResult [sendStatus={result.status.value}, msgId={result.msg_id},"
        f" offsetMsgId={result.offset_msg_id}, messageQueue={queue_text(result.queue)},"
        f" queueOffset={result.queue_offset}]"
    )


_CHARSET = option("c", "charsetName", "character set of bodies, default UTF-8")
_EXPRESSION = option("s", "subExpression", "TagA || TagB")
_BEGIN = option("b", "beginTimestamp", "ms, or yyyy-MM-dd#HH:mm:ss:SSS")
_END = option("e", "endTimestamp", "ms, or yyyy-MM-dd#HH:mm:ss:SSS")
_ONE_GROUP = option("g", "consumerGroup", "make this group consume it now")
_ONE_CLIENT = option("d", "clientId", "the client that consumes it")
_QUEUE_ID = option("i", "queueId", "queue id", required=True)

COMMANDS = (
    Command(
        name="queryMsgById",
        help="show messages by their offset ids",
        run=query_by_id,
        options=(
            option("i", "msgId", "ids, separated by ,", required=True),
            _ONE_GROUP,
            _ONE_CLIENT,
            option("s", "sendMessage", "true: send a copy"),
            option("u", "unitName", "without effect"),
        ),
    ),
    Command(
        name="queryMsgByKey",
        help="find messages by a key",
        run=query_by_key,
        options=(TOPIC, option("k", "msgKey", "key", required=True)),
    ),
    Command(
        name="queryMsgByUniqueKey",
        help="find a message by the id that its producer assigned",
        run=query_by_unique_key,
        options=(
            option("i", "msgId", "unique id", required=True),
            _ONE_GROUP,
            _ONE_CLIENT,
            TOPIC,
            option("a", "showAll", "show all with this id, at most 32", flag=True),
        ),
    ),
    Command(
        name="queryMsgByOffset",
        help="show the message at a queue offset",
        run=query_by_offset,
        options=(
            TOPIC,
            option("b", "brokerName", "broker name", required=True),
            _QUEUE_ID,
            option("o", "offset", "queue offset", required=True),
        ),
    ),
    Command(
        name="printMsg",
        help="print all messages of a topic",
        run=print_messages,
        options=(
            TOPIC,
            _CHARSET,
            _EXPRESSION,
            _BEGIN,
            _END,
            option("d", "printBody", "true or false: include bodies, default true"),
        ),
    ),
    Command(
        name="printMsgByQueue",
        help="print all messages of a queue, or count its tags",
        run=print_queue,
        options=(
            TOPIC,
            option("a", "brokerName", "broker name", required=True),
            _QUEUE_ID,
            _CHARSET,
            _EXPRESSION,
            _BEGIN,
            _END,
            option("p", "print", "true or false: print each message"),
            option("d", "printBody", "true or false: include bodies"),
            option("f", "calculate", "true or false: count tags"),
        ),
    ),
    Command(
        name="consumeMessage",
        help="print messages of a topic, a queue, or from an offset on; store no offset",
        run=consume_messages,
        options=(
            TOPIC,
            option("b", "brokerName", "broker name"),
            option("i", "queueId", "queue id"),
            option("o", "offset", "queue offset"),
            option("g", "consumerGroup", "consumer group of the pulls"),
            option("s", "beginTimestamp", "ms, or yyyy-MM-dd#HH:mm:ss:SSS"),
            _END,
            option("c", "MessageNumber", "maximum number of messages, default 128"),
        ),
    ),
    Command(
        name="sendMessage",
        help="send a message",
        run=send_message,
        options=(
            TOPIC,
            option("p", "body", "text", required=True),
            option("k", "key", "keys"),
            option("c", "tags", "tags"),
            option("b", "broker", "broker name"),
            option("i", "qid", "queue id"),
            option("m", "msgTraceEnable", "without effect: this client does not trace"),
        ),
    ),
)
