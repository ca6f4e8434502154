"""Streams fed by brokers: Redis Streams, NATS JetStream, Kafka and MQTT, as tasks of the same process.

A message holds what a post would: JSON or msgpack with `proba`. Where a broker numbers its messages, the position of
the last one learned is stored with the state it led to, so after any crash reading goes on with the next: each message
counts once. MQTT has no numbers that outlast a connection. There a message is confirmed after its commit, so none is
lost; one may come twice unless it carries `client` and `seq`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from reprior._check import InputError, fail
from reprior.service.errors import Conflict, Missing, Refused, Unavailable
from reprior.service.hub import Hub
from reprior.service.posts import Post
from reprior.service.receipts import check_seq
from reprior.service.wire import MSGPACK, check_keys, parse

log = logging.getLogger("reprior.service")
AT_ONCE = 256  # messages that may wait for one commit
PAUSE = 1.0  # seconds before a broker is tried again
LOOK_SECONDS = 0.5  # for which a read waits for messages
JOINED = object()  # in a queue of messages: the broker has accepted the connection
PORTS = {"redis": 6379, "mqtt": 1883, "nats": 4222, "kafka": 9092}
PACKAGES = {"redis": ("redis", "redis"), "mqtt": ("paho", "paho-mqtt"), "nats": ("nats", "nats-py"),
            "kafka": ("confluent_kafka", "confluent-kafka")}  # as imported, as installed  # fmt: skip


class Address(NamedTuple):
    """What an intake's URL says: which broker, what to read there, and which stream learns it."""

    kind: str
    host: str
    port: int
    topic: str
    stream: str
    user: str | None
    password: str | None
    more: dict[str, str]


def check_address(url: str) -> Address:
    """Return the parts of a URL such as redis://localhost:6379/scores?stream=shop."""
    parts = urlsplit(url)
    shown = f"{parts.scheme}://…"  # a URL may hold a password
    if parts.scheme not in PORTS:
        fail("serve", "--intake", "start with " + ", ".join(f"{kind}://" for kind in PORTS), shown)
    topic, query = unquote(parts.path.strip("/")), dict(parse_qsl(parts.query))
    if not topic or not parts.hostname:
        fail("serve", "--intake", "be like redis://HOST:PORT/KEY", shown)
    port, stream = parts.port or PORTS[parts.scheme], query.pop("stream", topic)
    return Address(parts.scheme, parts.hostname, port, topic, stream, parts.username, parts.password, query)


def check_package(address: Address) -> None:
    """Refuse a broker whose Python package is not installed."""
    module, package = PACKAGES[address.kind]
    if find_spec(module) is None:
        fail("serve", "--intake", f"have the package {package} installed", f"{address.kind}:// without it",
             remedy=f"Run `pip install {package}`")  # fmt: skip


class Message(NamedTuple):
    """A message, its place (the log of the broker and the position there), and how to confirm it, if it has these."""

    body: bytes
    cursor: tuple[str, str] | None
    confirm: Callable[[], Any] | None = None


Reader = AsyncIterator[list[Message]]  # yields an empty list while it is connected and there is no message


async def run(hub: Hub, url: str) -> None:
    """Read from a broker for ever; while it cannot be reached, try again."""
    address = check_address(url)
    name = f"{address.kind}://{address.host}:{address.port}/{address.topic}"
    hub.intakes[name] = "not connected yet"
    readers = {"redis": read_redis, "nats": read_nats, "kafka": read_kafka, "mqtt": read_mqtt}
    while True:
        try:
            served = hub.get(address.stream)
            async for messages in readers[address.kind](address, dict(served.receipts.cursors)):
                if hub.intakes[name] is not None:
                    log.info("intake from %s is connected", name)
                hub.intakes[name] = None
                await asyncio.gather(*(take(hub, address.stream, message) for message in messages))
        except (Conflict, Missing, Unavailable) as error:
            problem = str(error)
        except Exception as error:  # each broker's client has its own kinds
            problem = type(error).__name__
        else:
            problem = "the broker ended the connection"
        if problem != hub.intakes[name]:
            log.warning("intake from %s waits: %s", name, problem)
        hub.intakes[name] = problem
        await asyncio.sleep(PAUSE)


async def take(hub: Hub, stream: str, message: Message) -> None:
    """Learn one message, and confirm it once that is on disk; one that cannot be learned is counted and passed over.

    Messages of one batch are learned in their order, because each is learned before the first wait.
    """
    try:
        kind = "application/json" if message.body[:1] in (b"{", b" ", b"\n") else MSGPACK[0]
        body = parse(message.body, kind, "intake")
        check_keys(body, ("proba", "dtype", "client", "seq"), "intake")
        client, seq = check_seq(body.get("client"), body.get("seq"))
        post = Post(body.get("proba"), client, seq, body.get("dtype"), correct=False, cursor=message.cursor)
        await hub.posts.samples(stream, post)
    except (InputError, Refused) as error:
        hub.counters.refuse(stream, "bad_input", str(error))
        if message.cursor is not None:
            await hub.posts.skip_message(stream, message.cursor)
    if message.confirm is not None:
        message.confirm()


async def read_redis(address: Address, cursors: dict[str, str]) -> Reader:
    """Yield the entries of a Redis stream; the field `body`, or the only one, holds the message."""
    from redis.asyncio import Redis

    origin = f"redis:{address.topic}"
    last = cursors.get(origin, "0-0")
    client = Redis(host=address.host, port=address.port, db=int(address.more.get("db", 0)), username=address.user,
                   password=address.password)  # fmt: skip
    try:
        while True:
            answer = await client.xread({address.topic: last}, count=AT_ONCE, block=int(1000 * LOOK_SECONDS))
            entries = [entry for _, some in answer or [] for entry in some]
            last = entries[-1][0].decode() if entries else last
            yield [Message(fields.get(b"body", next(iter(fields.values()), b"")), (origin, number.decode()))
                   for number, fields in entries]  # fmt: skip
    finally:
        await client.aclose()


async def read_nats(address: Address, cursors: dict[str, str]) -> Reader:
    """Yield the messages of a JetStream stream in order; `?subject=` picks one of its subjects.

    A stream that is deleted and made again numbers its messages from 1: when it was made is part of the origin.
    """
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    login = {"user": address.user, "password": address.password} if address.user else {}
    client = await nats.connect(f"nats://{address.host}:{address.port}", max_reconnect_attempts=0, **login)
    try:
        jet = client.jetstream()
        made = (await jet.stream_info(address.topic)).created
        origin = f"nats:{address.topic}:{made}"
        config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, ack_policy=AckPolicy.NONE,
                                opt_start_seq=int(cursors.get(origin, "0")) + 1)  # fmt: skip
        asked = await jet.pull_subscribe(address.more.get("subject", ">"), stream=address.topic, config=config)
        while True:
            fetched = []
            with suppress(nats.errors.TimeoutError):
                fetched = await asked.fetch(AT_ONCE, timeout=LOOK_SECONDS)
            yield [Message(m.data, (origin, str(m.metadata.sequence.stream))) for m in fetched]
            if client.is_closed or (not fetched and (await jet.stream_info(address.topic)).created != made):
                return
    finally:
        await client.close()


async def read_kafka(address: Address, cursors: dict[str, str]) -> Reader:
    """Yield the messages of a Kafka topic, each partition in order; no consumer group is used."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({
        "bootstrap.servers": f"{address.host}:{address.port}", "group.id": "reprior", "enable.auto.commit": False,
        "auto.offset.reset": "earliest", **{k: v for k, v in address.more.items() if "." in k},
    })  # fmt: skip
    try:
        about = await asyncio.to_thread(consumer.list_topics, address.topic, 10)
        parts = []
        for number in about.topics[address.topic].partitions:
            last = cursors.get(f"kafka:{address.topic}:{number}")
            parts.append(TopicPartition(address.topic, number, OFFSET_BEGINNING if last is None else int(last) + 1))
        if not parts:
            return
        consumer.assign(parts)
        while True:
            fetched = await asyncio.to_thread(consumer.consume, AT_ONCE, LOOK_SECONDS)
            for message in fetched:
                if message.error() is not None:
                    raise ConnectionError(message.error().str())
            yield [Message(m.value() or b"", (f"kafka:{m.topic()}:{m.partition()}", str(m.offset())))
                   for m in fetched]  # fmt: skip
    finally:
        await asyncio.to_thread(consumer.close)


async def read_mqtt(address: Address, cursors: dict[str, str]) -> Reader:
    """Yield the messages of an MQTT topic, confirmed after their commit; the session is kept while we are away."""
    import paho.mqtt.client as mqtt

    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Any](AT_ONCE * 4)
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, client_id=address.more.get("client", f"reprior-{address.stream}"),
        clean_session=False, manual_ack=True,
    )  # fmt: skip
    if address.user:
        client.username_pw_set(address.user, address.password)

    def heard(_client: Any, _data: Any, message: Any) -> None:
        # waits while the queue is full, and the broker waits with it
        asyncio.run_coroutine_threadsafe(queue.put(message), loop).result()

    def joined(_client: Any, _data: Any, _flags: Any, reason: Any, _more: Any) -> None:
        if not reason.is_failure:
            client.subscribe(address.topic, qos=1)
            asyncio.run_coroutine_threadsafe(queue.put(JOINED), loop)

    def left(*_: Any) -> None:
        loop.call_soon_threadsafe(lambda: queue.put_nowait(None) if not queue.full() else None)

    client.on_message, client.on_connect, client.on_disconnect = heard, joined, left
    await asyncio.to_thread(client.connect, address.host, address.port, 30)
    client.loop_start()
    try:
        while True:
            queued = [await queue.get()]
            while not queue.empty() and len(queued) < AT_ONCE:
                queued.append(queue.get_nowait())
            come = [m for m in queued if m not in (None, JOINED)]
            yield [Message(m.payload, None, partial(client.ack, m.mid, m.qos)) for m in come]
            if None in queued:
                return
    finally:
        client.on_message = None
        while not queue.empty():
            queue.get_nowait()
        await asyncio.to_thread(client.disconnect)
        await asyncio.to_thread(client.loop_stop)
