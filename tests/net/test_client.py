"""``RemotingClient`` against real loopback servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar

import pytest
from harness.net import EchoHandler, InLoop, SkewedScheduler, until

from rmqpy.acl.signature import Credentials
from rmqpy.model.errors import ConnectionLostError, NetworkError, RmqError
from rmqpy.net.client import ClientLimits, RemotingClient, parse_address
from rmqpy.net.connection import ConnectionLimits, RemotingConnection
from rmqpy.net.server.server import RemotingServer
from rmqpy.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from rmqpy.remoting.frame import MAX_FRAME, encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder


async def connected_pair(
    scheduler: SkewedScheduler, handler: EchoHandler, limits: ClientLimits | None = None
) -> tuple[RemotingServer, RemotingClient, str]:
    """Return a started server, a client and the server's address."""
    server = RemotingServer(handler, scheduler)
    host, port = await server.listen("127.0.0.1", 0)
    return server, RemotingClient(scheduler, limits or ClientLimits()), f"{host}:{port}"


def request(code: int = 10, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand.request(code, body=body)


class Outcomes:
    """The responses and errors that ``done`` was called with, in order."""

    def __init__(self) -> None:
        self.all: list[RemotingCommand | RmqError] = []

    def done(self, response: RemotingCommand | None, fault: RmqError | None) -> None:
        outcome = fault if response is None else response
        assert outcome is not None
        self.all.append(outcome)

    @property
    def bodies(self) -> list[bytes]:
        return [each.body for each in self.all if isinstance(each, RemotingCommand)]


class Written:
    """The number of frames in each write of a connection to its transport."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        pieces, collected = RemotingConnection.write_pieces, RemotingConnection._hand_over

        def write_pieces(
            connection: RemotingConnection, frames: Sequence[bytes], now_ms: int
        ) -> None:
            self._count(b"".join(frames))
            pieces(connection, frames, now_ms)

        def hand_over(connection: RemotingConnection, out: bytes | bytearray) -> None:
            self._count(bytes(out))
            collected(connection, out)

        monkeypatch.setattr(RemotingConnection, "write_pieces", write_pieces)
        monkeypatch.setattr(RemotingConnection, "_hand_over", hand_over)

    def _count(self, data: bytes) -> None:
        self.sizes.append(len(FrameDecoder().receive(data)))


async def answer_all(peer: socket.socket, count: int) -> None:
    """Read ``count`` requests from ``peer`` and send their answers, which have the same body."""

    def answer() -> None:
        decoder = FrameDecoder()
        requests: list[RemotingCommand] = []
        while len(requests) < count:
            requests += decoder.receive(peer.recv(65_536))
        answers = [RemotingCommand.response_to(each, body=each.body) for each in requests]
        peer.sendall(b"".join(map(encode_command, answers)))

    await asyncio.to_thread(answer)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        ("[::1]:9876", ("::1", 9876)),
        ("mq.example.org:1", ("mq.example.org", 1)),
    ],
)
def test_an_address_is_parsed(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize("text", ["", "host", "host:", ":9876", "h:x", "h:65536", "h:-1", "h:1²"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(NetworkError, match="host:port"):
        parse_address(text)


def test_200_parallel_requests_share_one_connection(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(scheduler, handler)
        answers = await asyncio.gather(
            *(client.invoke(address, request(body=b"%d" % n)) for n in range(200))
        )
        assert [each.body for each in answers] == [b"%d" % n for n in range(200)]
        assert len({each.opaque for each in answers}) == 200
        assert server.counts.accepted == 1
        assert client.pending == 0
        await client.close()
        await server.close()
        assert scheduler.failure_log.failures == 0

    in_loop(main)


class Answered:
    """A client whose requests are answered together, in one read."""

    def __init__(self, client: RemotingClient, peer: socket.socket, address: str) -> None:
        self.client = client
        self.peer = peer
        self.address = address

    async def ask(self, name: bytes) -> bytes:
        return (await self.client.invoke(self.address, request(body=name), 60_000)).body

    def ahead(self, name: bytes) -> Ahead:
        sent = self.client.invoke_ahead(self.address, request(body=name), 60_000)
        assert sent is not None
        return Ahead(sent)


class Ahead:
    """A request that was sent before its response is awaited."""

    def __init__(self, sent: Awaitable[RemotingCommand]) -> None:
        self.sent = sent

    async def response(self) -> bytes:
        return (await self.sent).body


@asynccontextmanager
async def answered(
    scheduler: SkewedScheduler, limits: ClientLimits | None = None
) -> AsyncIterator[Answered]:
    """Yield a connected client; its peer answers what ``answer_all`` is called for."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        listener.setblocking(False)
        host, port = listener.getsockname()
        client = RemotingClient(scheduler, limits or ClientLimits())
        world = Answered(client, listener, f"{host}:{port}")
        first = asyncio.create_task(world.ask(b"first"))
        world.peer, _ = await scheduler.loop.sock_accept(listener)
        with world.peer:
            world.peer.setblocking(True)
            await answer_all(world.peer, 1)
            assert await first == b"first"
            yield world
            await world.client.close()


def test_a_response_resumes_its_task_within_the_read(
    in_loop: InLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task has its own context there, and its error is its own."""
    happened: list[str] = []
    take_in = RemotingConnection.take_in
    name: ContextVar[str] = ContextVar("name")

    def take_in_and_note(connection: RemotingConnection, data: memoryview) -> None:
        take_in(connection, data)
        happened.append("read")

    async def main(scheduler: SkewedScheduler) -> None:
        async with answered(scheduler) as world:

            async def ask(own: str) -> None:
                name.set(own)
                assert (await world.ask(own.encode())).decode() == own == name.get()
                happened.append(own)
                raise LookupError(own)

            tasks = [asyncio.create_task(ask(each)) for each in ("a", "b")]
            await asyncio.sleep(0)
            monkeypatch.setattr(RemotingConnection, "take_in", take_in_and_note)
            await answer_all(world.peer, 2)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [repr(each) for each in results] == ["LookupError('a')", "LookupError('b')"]
            assert happened == ["a", "b", "read"]
            assert (world.client.pending, scheduler.failure_log.failures) == (0, 0)

    in_loop(main)


def test_a_response_may_be_awaited_after_it_arrived(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        async with answered(scheduler) as world:
            before, after, cancelled, never = (world.ahead(b"%d" % each) for each in range(4))
            task = asyncio.create_task(cancelled.response())
            early = asyncio.create_task(before.response())
            await asyncio.sleep(0)
            assert task.cancel()
            await answer_all(world.peer, 4)
            await until(lambda: world.client.pending == 0)
            assert (await early, await after.response()) == (b"0", b"1")
            with pytest.raises(asyncio.CancelledError):
                await task
            del never
            assert scheduler.failure_log.failures == 0

    in_loop(main)


def test_the_error_of_a_request_may_be_raised_after_it_happened(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        async with answered(scheduler) as world:
            late, never = world.ahead(b"late"), world.ahead(b"never")
            world.peer.close()
            await until(lambda: world.client.pending == 0)
            with pytest.raises(ConnectionLostError):
                await late.response()
            assert world.client.invoke_ahead(world.address, request(), 60_000) is None
            del never
            assert scheduler.failure_log.failures == 0

    in_loop(main)


def test_nothing_is_sent_ahead_without_a_connection_or_to_a_server_that_does_not_read(
    in_loop: InLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        client = RemotingClient(scheduler)
        assert client.invoke_ahead("127.0.0.1:9", request(), 60_000) is None
        assert not client.connected_addresses and not client.pending
        await client.close()
        async with answered(scheduler) as world:
            monkeypatch.setattr(world.client, "_is_behind", lambda _: True)
            assert world.client.invoke_ahead(world.address, request(), 60_000) is None
            assert world.client.pending == 0

    in_loop(main)


def test_only_answers_that_arrive_faster_than_they_are_read_are_held_back(
    in_loop: InLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of a turn are limited, but not those of several turns."""
    turn_bytes, read_bytes = 4_096, 1_024
    held: list[RemotingConnection] = []
    wait_for_turn = RemotingConnection.wait_for_turn

    def wait_for_turn_and_note(connection: RemotingConnection) -> None:
        held.append(connection)
        wait_for_turn(connection)

    monkeypatch.setattr(RemotingConnection, "wait_for_turn", wait_for_turn_and_note)

    async def main(scheduler: SkewedScheduler) -> None:
        limits = ClientLimits(connection=ConnectionLimits(turn_bytes=turn_bytes))
        async with answered(scheduler, limits) as world:
            world.client.turns.buffer = memoryview(bytearray(read_bytes))
            for _ in range(2 * turn_bytes // 500):
                task = asyncio.create_task(world.ask(b"x" * 500))
                await asyncio.sleep(0)
                await answer_all(world.peer, 1)
                assert len(await task) == 500
            assert not held
            task = asyncio.create_task(world.ask(b"y" * 2 * turn_bytes))
            await asyncio.sleep(0)
            await answer_all(world.peer, 1)
            assert len(await task) == 2 * turn_bytes
            assert held

    in_loop(main)


def test_a_task_resumed_by_a_response_may_end_the_program(in_loop: InLoop) -> None:
    """The loop ends with its SystemExit; the connection and other responses are not affected."""
    answered_too: list[bytes] = []

    async def main(scheduler: SkewedScheduler) -> None:
        async with answered(scheduler) as world:

            async def end() -> None:
                await world.ask(b"end")
                raise SystemExit(7)

            async def other() -> None:
                answered_too.append(await world.ask(b"other"))

            tasks = [asyncio.create_task(each()) for each in (end, other)]
            await asyncio.sleep(0)
            await answer_all(world.peer, 2)
            await asyncio.wait(tasks)
            await asyncio.Event().wait()

    with pytest.raises(SystemExit) as ended:
        in_loop(main)
    assert ended.value.code == 7
    assert answered_too == [b"other"]


def test_a_task_resumed_by_a_response_may_cancel_the_next_one(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        async with answered(scheduler) as world:

            async def first() -> None:
                await world.ask(b"first")
                assert second.cancel()

            task = asyncio.create_task(first())
            second = asyncio.create_task(world.ask(b"second"))
            await asyncio.sleep(0)
            await answer_all(world.peer, 2)
            await task
            with pytest.raises(asyncio.CancelledError):
                await second
            assert (world.client.pending, scheduler.failure_log.failures) == (0, 0)

    in_loop(main)


def test_a_task_resumed_by_a_response_may_close_the_client(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        async with answered(scheduler) as world:

            async def first() -> None:
                await world.ask(b"first")
                await world.client.close()

            task = asyncio.create_task(first())
            others = [asyncio.create_task(world.ask(b"other")) for _ in range(3)]
            await asyncio.sleep(0)
            await answer_all(world.peer, 4)
            await task
            for other in others:
                with pytest.raises(NetworkError, match="closing"):
                    await other
            assert (world.client.pending, scheduler.failure_log.failures) == (0, 0)

    in_loop(main)


def test_a_response_received_while_another_task_runs_resumes_its_task_later(
    in_loop: InLoop,
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        async with answered(scheduler) as world:
            asking = asyncio.create_task(world.ask(b"later"))
            await asyncio.sleep(0)
            (connection,) = world.client._by_connection
            (opaque,) = world.client._by_connection[connection].pending
            response = RemotingCommand(0, opaque, FLAG_RESPONSE, body=b"now")
            connection.take_in(memoryview(encode_command(response)))
            assert not asking.done()
            assert await asking == b"now"
            assert (world.client.pending, scheduler.failure_log.failures) == (0, 0)

    in_loop(main)


def test_a_request_after_a_lone_answer_waits_for_no_other(
    in_loop: InLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is sent alone leaves at once; those of a burst leave together."""

    async def main(scheduler: SkewedScheduler) -> None:
        client = RemotingClient(scheduler)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            outcomes, written = Outcomes(), Written(monkeypatch)

            def ask(body: bytes) -> None:
                client.request(address, request(body=body), 10_000, outcomes.done)

            ask(b"0")
            peer = await asyncio.to_thread(lambda: listener.accept()[0])
            with peer:
                for number in range(1, 3):  # the second request, and each after it
                    await answer_all(peer, 1)
                    await until(lambda count=number: len(outcomes.all) == count)  # type: ignore[misc]
                    ask(b"%d" % number)
                    assert written.sizes[-1] == 1
                assert len(written.sizes) == 3
                ask(b"3")  # another one is pending
                ask(b"4")
                assert len(written.sizes) == 3
                await answer_all(peer, 3)
                await until(lambda: len(outcomes.all) == 5)
                assert written.sizes[3:] == [2]
                client.oneway(address, request())  # has no answer that would tell
                client.oneway(address, request())
                assert len(written.sizes) == 4
                await until(lambda: written.sizes[4:] == [2])
            assert outcomes.bodies == [b"0", b"1", b"2", b"3", b"4"]
        await client.close()

    in_loop(main)


def test_the_command_of_the_caller_is_not_changed(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(scheduler, handler)
        command = request(body=b"x")
        command.flag = FLAG_ONEWAY  # invoke() sends a request with an answer, whatever the flag.
        assert (await client.invoke(address, command)).body == b"x"
        assert (await client.invoke(address, command)).opaque == 1
        assert command == RemotingCommand(10, 0, FLAG_ONEWAY, body=b"x")
        await client.close()
        await server.close()

    in_loop(main)


def test_both_oneway_calls_send_without_a_pending_answer(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(scheduler, handler)
        client.oneway(address, request(31))
        await client.invoke_oneway(address, request(32))
        await client.invoke(address, request(33))
        assert [code for call in handler.calls for code in call] == [31, 32, 33]
        assert client.pending == 0
        await client.close()
        await server.close()

    in_loop(main)


def test_a_refused_connect_fails_all_waiting_requests(
    in_loop: InLoop,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{unused.getsockname()[1]}"
            client = RemotingClient(scheduler)
            outcomes = Outcomes()
            client.request(address, request(), 3000, outcomes.done)
            client.oneway(address, request())
            assert outcomes.all == []
            with pytest.raises(NetworkError, match=f"^connect to {address}: Connection refused$"):
                await client.invoke(address, request())
            with pytest.raises(NetworkError):
                await client.invoke_oneway(address, request())
            await until(lambda: outcomes.all)
            assert isinstance(outcomes.all[0], NetworkError)
        assert client.pending == 0
        assert client.connected_addresses == []
        await client.close()

    in_loop(main)


def test_a_request_that_cannot_be_sent_fails_through_its_callback(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        client = RemotingClient(scheduler)
        outcomes = Outcomes()
        client.request("nowhere", request(), 3000, outcomes.done)
        client.request("127.0.0.1:1", request(body=bytes(MAX_FRAME)), 3000, outcomes.done)
        client.request("a..b:1", request(), 3000, outcomes.done)
        client.oneway("nowhere", request())
        assert outcomes.all == []
        await until(lambda: len(outcomes.all) == 3)
        assert "'nowhere' is not an address" in str(outcomes.all[0])
        assert "larger than a peer accepts" in str(outcomes.all[1])
        assert "connect to a..b:1" in str(outcomes.all[2])
        await client.close()
        client.request("127.0.0.1:1", request(), 3000, outcomes.done)
        await until(lambda: len(outcomes.all) == 4)
        assert "closed" in str(outcomes.all[3])

    in_loop(main)


def test_a_connect_that_hangs_times_out(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            address = full.getsockname()
            fillers = []
            for _ in range(4):  # Fill the backlog: further handshakes get no answer.
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(address)
                fillers.append(filler)
            client = RemotingClient(scheduler, ClientLimits(connect_timeout_ms=30))
            with pytest.raises(NetworkError, match="no answer within 30 ms"):
                await client.invoke(f"{address[0]}:{address[1]}", request())
            await client.close()
            for filler in fillers:
                filler.close()

    in_loop(main)


def test_a_closed_connection_fails_its_requests_and_the_next_request_reconnects(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(scheduler, handler)
        outcomes = Outcomes()
        for _ in range(20):
            client.request(address, request(999), 60_000, outcomes.done)
        await until(lambda: sum(len(call) for call in handler.calls) == 20)
        handler.channels[0].close()
        await until(lambda: len(outcomes.all) == 20)
        assert {type(each) for each in outcomes.all} == {ConnectionLostError}
        assert str(outcomes.all[0]) == f"the connection to {address} was closed"
        assert client.pending == 0
        assert (await client.invoke(address, request(body=b"again"))).body == b"again"
        assert server.counts.accepted == 2
        await client.close()
        await server.close()

    in_loop(main)


def test_an_invoke_that_times_out_closes_its_connection(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(scheduler, handler)
        outcomes = Outcomes()
        client.request(address, request(999), 60_000, outcomes.done)
        with pytest.raises(NetworkError, match="did not answer within 20 ms"):
            await client.invoke(address, request(999), 20)
        assert len(outcomes.all) == 1
        assert "was closed" in str(outcomes.all[0])
        await until(lambda: handler.closed)
        await client.close()
        await server.close()

    in_loop(main)


def test_an_invoke_that_times_out_can_keep_its_connection(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(
            scheduler, handler, ClientLimits(close_socket_if_timeout=False)
        )
        with pytest.raises(NetworkError, match="did not answer"):
            await client.invoke(address, request(999), 5)
        await client.invoke(address, request())
        assert server.counts.accepted == 1
        await client.close()
        await server.close()

    in_loop(main)


def test_a_callback_request_that_times_out_closes_only_a_silent_connection(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(scheduler, handler)
        outcomes = Outcomes()
        client.request(address, request(999), 500, outcomes.done)
        await asyncio.sleep(0.02)
        await client.invoke(address, request())
        await until(lambda: outcomes.all)
        assert "did not answer within 500 ms" in str(outcomes.all[0])
        assert client.connected_addresses == [address]
        client.request(address, request(999), 20, outcomes.done)
        scheduler.skew_ms += 1
        await until(lambda: len(outcomes.all) == 2)
        assert client.connected_addresses == []
        await client.close()
        await server.close()

    in_loop(main)


@pytest.mark.slow
def test_each_request_of_a_link_has_its_own_deadline(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(
            scheduler, handler, ClientLimits(close_socket_if_timeout=False)
        )
        outcomes = Outcomes()
        for timeout_ms in (30, 10, 20):
            client.request(address, request(999), timeout_ms, outcomes.done)
        await until(lambda: len(outcomes.all) == 3)
        timeouts = [str(fault).rpartition("within ")[2] for fault in outcomes.all]
        assert timeouts == ["10 ms", "20 ms", "30 ms"]
        assert client.pending == 0
        await client.close()
        await server.close()

    in_loop(main)


@pytest.mark.parametrize("credentials", [None, Credentials("key", "secret")])
def test_a_body_in_pieces_arrives_joined(
    in_loop: InLoop,
    handler: EchoHandler,
    credentials: Credentials | None,
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(scheduler, handler)
        client.credentials = credentials
        outcomes = Outcomes()
        pieces = (b"[", b"x" * 300_000, b"]")
        for _ in range(2):  # before the connection exists, and after
            client.request(address, request(), 3_000, outcomes.done, pieces)
            client.request(address, request(body=b"small"), 3_000, outcomes.done)
            await until(lambda: len(outcomes.all) == 2)
            assert outcomes.bodies == [b"".join(pieces), b"small"]
            outcomes.all.clear()
        await client.close()
        await server.close()

    in_loop(main)


def test_a_late_or_unknown_answer_is_dropped(
    in_loop: InLoop,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        decoder = FrameDecoder()
        writers: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            while data := await reader.read(65536):
                for command in decoder.receive(data):
                    unknown = RemotingCommand(0, command.opaque + 1000, 1)
                    answer = RemotingCommand.response_to(command)
                    writer.write(encode_command(unknown) + encode_command(answer) * 2)

        raw = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = raw.sockets[0].getsockname()
        client = RemotingClient(scheduler)
        assert (await client.invoke(f"{host}:{port}", request())).code == 0
        assert (await client.invoke(f"{host}:{port}", request())).code == 0
        await client.close()
        raw.close()
        for writer in writers:
            writer.close()
        await asyncio.sleep(0)

    with caplog.at_level("INFO"):
        in_loop(main)
    assert "to no request, opaque 1000" in caplog.text
    assert "to no request, opaque 0" in caplog.text


def test_an_answer_on_another_connection_is_ignored(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(scheduler, handler)
        other = RemotingServer(handler, scheduler)
        host, port = await other.listen("127.0.0.1", 0)
        outcomes = Outcomes()
        client.request(address, request(999), 60_000, outcomes.done)  # opaque 0
        await client.invoke(f"{host}:{port}", request())
        handler.channels[-1].write(encode_command(RemotingCommand(0, 0, 1, body=b"forged")))
        await client.invoke(f"{host}:{port}", request())
        assert outcomes.all == []
        await client.close()
        await server.close()
        await other.close()

    in_loop(main)


def test_requests_of_the_peer_reach_the_handler_and_are_answered(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(scheduler, handler)
        client.handler = local = EchoHandler()
        await client.invoke(address, request())
        push = encode_command(RemotingCommand(40, 5, FLAG_ONEWAY))
        query = encode_command(RemotingCommand(307, 6, body=b"state?"))
        handler.channels[0].write(push + query)
        await until(lambda: handler.calls[1:])
        assert local.calls == [[40, 307]]
        assert local.turns == 1
        assert handler.calls == [[10], [0]]  # The answer arrived as a frame with code 0.
        await client.close()
        assert len(local.closed) == 1
        await server.close()

    in_loop(main)


def test_the_response_table_is_bounded(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(
            scheduler, handler, ClientLimits(pending_requests=3)
        )
        outcomes = Outcomes()
        for _ in range(4):
            client.request(address, request(999), 60_000, outcomes.done)
        await until(lambda: outcomes.all)
        assert "the limit of 3 pending requests is reached" in str(outcomes.all[0])
        await client.close()
        assert len(outcomes.all) == 4
        assert client.pending == 0
        await server.close()

    in_loop(main)


def test_callback_requests_to_a_peer_that_does_not_read_are_refused(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        with socket.socket() as unread:
            unread.bind(("127.0.0.1", 0))
            unread.listen(1)
            host, port = unread.getsockname()
            limits = ClientLimits(connection=ConnectionLimits(linger_ms=30))
            client = RemotingClient(scheduler, limits)
            outcomes = Outcomes()
            address = f"{host}:{port}"
            await client.invoke_oneway(address, request())
            for _ in range(20):
                client.request(address, request(body=bytes(1_000_000)), 60_000, outcomes.done)
                await asyncio.sleep(0)
            await until(lambda: outcomes.all)
            assert "it does not read" in str(outcomes.all[-1])
            await client.close()
            assert len(outcomes.all) == 20

    in_loop(main)


def test_close_does_not_wait_for_a_connection_that_does_not_end(
    in_loop: InLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(1)
            host, port = server.getsockname()
            limits = ClientLimits(connection=ConnectionLimits(linger_ms=1))
            client = RemotingClient(scheduler, limits)
            await client.invoke_oneway(f"{host}:{port}", request())
            with monkeypatch.context() as stuck:
                stuck.setattr(RemotingConnection, "close", lambda _: None)
                stuck.setattr(RemotingConnection, "abort", lambda _: None)
                await client.close()
            assert f"did not end when aborted: {host}:{port} (" in caplog.text
            (connection,) = client._by_connection
            connection.abort()
            await until(lambda: not client._by_connection)

    monkeypatch.setattr("rmqpy.net.connection.ABORTED_S", 0.01)
    in_loop(main)


def test_a_burst_waits_for_a_server_that_does_not_read_and_answers_are_still_read(
    in_loop: InLoop,
) -> None:
    count, body = 100, bytes(100_000)

    async def main(scheduler: SkewedScheduler) -> None:
        client = RemotingClient(scheduler)
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            listener.setblocking(False)
            host, port = listener.getsockname()
            address = f"{host}:{port}"
            first = asyncio.create_task(client.invoke(address, request(), 60_000))
            peer, _ = await scheduler.loop.sock_accept(listener)
            decoder = FrameDecoder()
            with peer:
                (asked,) = decoder.receive(memoryview(await scheduler.loop.sock_recv(peer, 4096)))

                async def burst() -> None:
                    for _ in range(count):
                        await client.invoke_oneway(address, request(31, body), 60_000)

                sending = asyncio.create_task(burst())
                await until(lambda: client.is_congested(address))
                with pytest.raises(NetworkError, match="it does not read"):
                    await client.invoke(address, request(), 10)
                assert not sending.done()
                answer = encode_command(RemotingCommand.response_to(asked))
                await scheduler.loop.sock_sendall(peer, answer)
                await first  # although the server still does not read
                received = 0
                while received < count:
                    data = await scheduler.loop.sock_recv(peer, 1 << 20)
                    received += len(decoder.receive(memoryview(data)))
                await sending
        await client.close()

    in_loop(main)


def test_an_idle_connection_is_closed(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(scheduler, handler)
        await client.invoke(address, request())
        scheduler.skew_ms += 119_000
        client.sweep()
        assert client.connected_addresses == [address]
        scheduler.skew_ms += 1_001
        client.sweep()
        await until(lambda: not client.connected_addresses)
        await until(lambda: handler.closed)
        await client.close()
        await server.close()

    in_loop(main)


def test_a_connection_is_not_idle_before_it_is_open(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(scheduler, handler)
        scheduler.skew_ms += 200_000
        asking = asyncio.create_task(client.invoke(address, request(body=b"first"), 2000))
        while not client._by_connection:
            await asyncio.sleep(0)
        assert client.connected_addresses == []
        client.sweep()
        assert (await asking).body == b"first"
        await client.close()
        await server.close()

    in_loop(main)


def test_close_fails_pending_requests_also_while_connecting(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, client, address = await connected_pair(scheduler, handler)
        outcomes = Outcomes()
        client.request(address, request(), 60_000, outcomes.done)
        await client.close()
        assert len(outcomes.all) == 1
        assert "closing" in str(outcomes.all[0])
        await server.close()
        assert scheduler.failure_log.failures == 0

    in_loop(main)
