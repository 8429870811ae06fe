// The Rust client of RocketMQ, which reads commands as lines and writes JSON lines, as the probe in Java does.
use std::any::Any;
use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

use rocketmq_client_rust::*;
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_protocol::protocol::heartbeat::message_model::MessageModel;
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};
use serde_json::{json, Value};

type Failure = Box<dyn std::error::Error>;

fn print(event: Value) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{event}").expect("the reader has gone");
    output.flush().expect("the reader has gone");
}

/// Returns the text of an error and of its causes, without which this client's errors say little.
fn text(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(|error| error.to_string()).collect::<Vec<_>>().join(": ")
}

#[derive(Clone)]
struct Options(HashMap<String, String>);

impl Options {
    fn read<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        let pairs = words.filter_map(|word| word.split_once('='));
        Self(pairs.map(|(name, value)| (name.to_string(), decoded(value))).collect())
    }

    fn text(&self, name: &str, otherwise: &str) -> String {
        self.0.get(name).cloned().unwrap_or_else(|| otherwise.to_string())
    }

    fn number(&self, name: &str, otherwise: u64) -> u64 {
        self.0.get(name).map_or(otherwise, |text| text.parse().expect("a number"))
    }
}

fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut place, mut made) = (0, Vec::new());
    while place < bytes.len() {
        if bytes[place] == b'%' {
            made.push(u8::from_str_radix(&text[place + 1..place + 3], 16).expect("two hexadecimal digits"));
            place += 3;
        } else {
            made.push(bytes[place]);
            place += 1;
        }
    }
    String::from_utf8(made).expect("UTF-8")
}

fn message(options: &Options, index: u64) -> Result<Message, Failure> {
    let sizes = options.text("sizes", "100");
    let sizes: Vec<u64> = sizes.split(',').map(|size| size.parse().expect("a size")).collect();
    let size = sizes[index as usize % sizes.len()];
    let body: Vec<u8> = (0..size).map(|j| (31 * index + 7 * j) as u8).collect();
    let mut builder = Message::builder().topic(options.text("topic", "")).body_slice(&body);
    let tags = options.text("tags", "");
    if !tags.is_empty() {
        let tags: Vec<&str> = tags.split(',').collect();
        builder = builder.tags(tags[index as usize % tags.len()].to_string());
    }
    if let Some(prefix) = options.0.get("keys") {
        builder = builder.key(format!("{prefix}{index}"));
    }
    if options.0.contains_key("delay") {
        builder = builder.delay_level(options.number("delay", 0) as i32);
    }
    if let Some((name, value)) = options.0.get("property").and_then(|text| text.split_once(':')) {
        builder = builder.raw_property(name.to_string(), value.to_string())?;
    }
    Ok(builder.build()?)
}

fn print_sent(index: u64, result: &SendResult) {
    let queue = result.message_queue.as_ref().map(|queue| queue.queue_id());
    let status = match result.send_status {
        SendStatus::SendOk => "SEND_OK",
        _ => "another status",
    };
    print(json!({"event": "sent", "index": index, "status": status, "queueId": queue, "queueOffset": result.queue_offset}));
}

/// Sends again for up to `retry_ms` after a failure, as a program does that must not lose a message.
async fn patient(producer: &DefaultMQProducer, message: Message, retry_ms: u64) -> ClientResult<Option<SendResult>> {
    let give_up = Instant::now() + Duration::from_millis(retry_ms);
    loop {
        let sent = producer.send(message.clone()).await;
        if sent.is_ok() || Instant::now() >= give_up {
            return sent;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn send(runtime: &Arc<ClientRuntime>, options: &Options) -> Result<(), Failure> {
    let mut producer = DefaultMQProducer::builder(runtime.clone())
        .producer_group(options.text("group", "rust-producers"))
        .name_server_addr(options.text("namesrv", ""))
        .build();
    producer.start().await?;
    let (first, shards) = (options.number("first", 0), options.number("shards", 0));
    let count = options.number("count", 1);
    let (ended, ends) = mpsc::channel();
    let mut batch = Vec::new();
    for index in first..first + count {
        let message = message(options, index)?;
        match options.text("mode", "sync").as_str() {
            "sync" => {
                let sent = if shards > 0 {
                    let choose = |queues: &[_], _: &Message, shard: &u64| {
                        let queues: &[rocketmq_model::common::message::message_queue::MessageQueue] = queues;
                        queues.get(*shard as usize % queues.len()).cloned()
                    };
                    producer.send_with_selector(message, choose, index % shards).await
                } else {
                    patient(&producer, message, options.number("retryMs", 0)).await
                };
                match sent {
                    Ok(Some(result)) => print_sent(index, &result),
                    Ok(None) => print(json!({"event": "failed", "index": index, "error": "no result"})),
                    Err(error) => print(json!({"event": "failed", "index": index, "error": text(&error)})),
                }
            }
            "async" => {
                let ended = ended.clone();
                let callback = move |result: Option<&SendResult>, error: Option<&ClientError>| {
                    match result {
                        Some(result) => print_sent(index, result),
                        None => print(json!({"event": "failed", "index": index, "error": error.map(|error| text(error))})),
                    }
                    let _ = ended.send(());
                };
                producer.send_with_callback(message, callback).await?;
            }
            "oneway" => producer.send_oneway(message).await?,
            _ => batch.push(message),
        }
    }
    if !batch.is_empty() {
        print_sent(first, &producer.send_batch(batch).await?);
    }
    if options.text("mode", "sync") == "async" {
        for _ in 0..count {
            tokio::task::block_in_place(|| ends.recv_timeout(Duration::from_secs(10)))?;
        }
    }
    tokio::time::sleep(Duration::from_millis(500)).await; // Nothing reports the last one-way send.
    producer.shutdown().await;
    Ok(())
}

struct Answers {
    outcomes: String,
    checks: String,
}

fn state(letters: &str, index: usize) -> LocalTransactionState {
    match letters.as_bytes()[index % letters.len()] {
        b'c' => LocalTransactionState::CommitMessage,
        b'r' => LocalTransactionState::RollbackMessage,
        _ => LocalTransactionState::Unknown,
    }
}

fn number_of(keys: &str) -> usize {
    let digits: String = keys.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

impl TransactionListener for Answers {
    fn execute_local_transaction(&self, message: &dyn MessageTrait, _: Option<&(dyn Any + Send + Sync)>) -> LocalTransactionState {
        let keys = message.get_keys().map(|keys| keys.to_string()).unwrap_or_default();
        state(&self.outcomes, number_of(&keys))
    }

    fn check_local_transaction(&self, message: &MessageExt) -> LocalTransactionState {
        let keys = message.get_keys().map(|keys| keys.to_string()).unwrap_or_default();
        let index = number_of(&keys);
        let answer = self.checks.as_bytes()[index % self.checks.len()] as char;
        print(json!({"event": "checked", "index": index, "answer": answer.to_string()}));
        state(&self.checks, index)
    }
}

async fn transact(runtime: &Arc<ClientRuntime>, options: &Options) -> Result<(), Failure> {
    let mut producer = TransactionMQProducer::builder(runtime.clone())
        .producer_group(options.text("group", "rust-transactions"))
        .name_server_addr(options.text("namesrv", ""))
        .topics(vec![options.text("topic", "")])
        .transaction_listener(Answers { outcomes: options.text("outcomes", "c"), checks: options.text("checks", "c") })
        .build();
    producer.start().await?;
    for index in 0..options.number("count", 1) {
        producer.send_message_in_transaction::<(), _>(message(options, index)?, None).await?;
    }
    tokio::time::sleep(Duration::from_millis(options.number("lingerMs", 0))).await;
    producer.shutdown().await;
    Ok(())
}

#[derive(Clone)]
struct Listener {
    began: Instant,
    count: Arc<AtomicU64>,
    last: Arc<AtomicU64>,
    refuse: i32,
}

impl Listener {
    fn receive(&self, messages: &[&MessageExt]) -> bool {
        for one in messages {
            let body = one.body().unwrap_or_default();
            print(json!({
                "event": "received", "topic": one.topic().to_string(), "queueId": one.queue_id(),
                "queueOffset": one.queue_offset(), "reconsumeTimes": one.reconsume_times(),
                "crc": crc32fast::hash(&body), "keys": one.get_keys().map(|keys| keys.to_string()),
                "tags": one.get_tags().map(|tags| tags.to_string()),
                "bornTimestamp": one.born_timestamp(), "storeTimestamp": one.store_timestamp(),
            }));
            self.count.fetch_add(1, Ordering::SeqCst);
        }
        self.last.store(self.began.elapsed().as_millis() as u64, Ordering::SeqCst);
        messages.iter().all(|one| one.reconsume_times() >= self.refuse)
    }
}

impl MessageListenerConcurrently for Listener {
    fn consume_message(&self, messages: &[&MessageExt], _: &ConsumeConcurrentlyContext) -> ClientResult<ConsumeConcurrentlyStatus> {
        Ok(if self.receive(messages) { ConsumeConcurrentlyStatus::ConsumeSuccess } else { ConsumeConcurrentlyStatus::ReconsumeLater })
    }
}

impl MessageListenerOrderly for Listener {
    fn consume_message(&self, messages: &[&MessageExt], _: &mut ConsumeOrderlyContext) -> ClientResult<ConsumeOrderlyStatus> {
        Ok(if self.receive(messages) { ConsumeOrderlyStatus::Success } else { ConsumeOrderlyStatus::SuspendCurrentQueueAMoment })
    }
}

async fn consume(runtime: &Arc<ClientRuntime>, options: &Options) -> Result<(), Failure> {
    let broadcasting = options.text("model", "clustering") == "broadcasting";
    let mut consumer = DefaultMQPushConsumer::builder(runtime.clone())
        .consumer_group(options.text("group", ""))
        .name_server_addr(options.text("namesrv", ""))
        .message_model(if broadcasting { MessageModel::Broadcasting } else { MessageModel::Clustering })
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        .build();
    let (topic, expression) = (options.text("topic", ""), options.text("expression", "*"));
    if options.text("type", "TAG") == "SQL92" {
        consumer.subscribe_with_selector(&topic, Some(MessageSelector::by_sql(expression))).await?;
    } else {
        consumer.subscribe(topic, expression).await?;
    }
    let began = Instant::now();
    let (count, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let listener = Listener { began, count: count.clone(), last: last.clone(), refuse: options.number("refuse", 0) as i32 };
    if options.text("mode", "concurrently") == "orderly" {
        consumer.register_message_listener_orderly(listener);
    } else {
        consumer.register_message_listener_concurrently(listener);
    }
    consumer.start().await?;
    let (most, idle) = (options.number("max", u64::MAX), options.number("idleMs", 1500));
    let first_by = options.number("firstMs", 10_000);
    loop {
        let (seen, now) = (count.load(Ordering::SeqCst), began.elapsed().as_millis() as u64);
        let quiet = now.saturating_sub(last.load(Ordering::SeqCst));
        if seen >= most || (seen > 0 && quiet >= idle) || (seen == 0 && now >= first_by) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await; // The last result is still being sent.
    consumer.shutdown().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let owner = RuntimeOwner::plan(RuntimeConfig { thread_name: "probe".to_string(), ..Default::default() })?.build()?;
    let telemetry = rocketmq_observability::install_global(&rocketmq_observability::TelemetryBootstrapConfig::default())?;
    print(json!({"event": "ready"}));
    let mut number = 0;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let command = words.next().unwrap_or_default();
        let options = Options::read(words);
        number += 1;
        // Members of one runtime share a client, which also has one name: each command has its own.
        let name: &str = format!("client-{number}").leak(); // A scope has a name for ever.
        let context = owner.root_context().component(name);
        let runtime = ClientRuntime::try_new(context, ClientRuntimeConfig::default(), telemetry.handle())?;
        let ended = match command {
            "send" => send(&runtime, &options).await,
            "consume" => consume(&runtime, &options).await,
            "transact" => transact(&runtime, &options).await,
            _ => Err(format!("no command {command}").into()),
        };
        runtime.shutdown().await;
        match ended {
            Ok(()) => print(json!({"event": "done"})),
            Err(error) => print(json!({"event": "fault", "error": text(error.as_ref())})),
        }
    }
    std::process::exit(0);
}
