import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The producer side of the probe: prints "sent" or "failed" for every message. */
final class Sending {
    private static final int ASYNC_WINDOW = 64;
    private static final int TIMEOUT_MS = 5000;

    static void send(Options options) throws Exception {
        boolean transactional = options.text("mode", "sync").equals("transaction");
        DefaultMQProducer producer = transactional ? transactionProducer(options)
            : new DefaultMQProducer(options.text("group", "probe-producer"), Probe.hook(options),
                options.has("traced"), null);
        producer.setInstanceName(Probe.freshName("producer"));
        producer.setNamesrvAddr(options.need("namesrv"));
        producer.setPollNameServerInterval(1000);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.start();
        try {
            List<MessageQueue> queues = queues(producer, options);
            Thread.sleep(options.longNumber("warmMs", 0));  // the first heartbeat is sent a second after the start
            switch (options.text("mode", "sync")) {
                case "sync":
                    one(options, queues, (m, q, i) -> sent(m, i, q == null ? producer.send(m) : producer.send(m, q)));
                    break;
                case "oneway":
                    one(options, queues, (m, q, i) -> {
                        producer.sendOneway(m, q);
                        sent(m, i, null);
                    });
                    Thread.sleep(300);  // nothing reports when the last message has been sent
                    break;
                case "async":
                    async(options, queues, producer);
                    break;
                case "batch":
                    batch(options, queues, producer);
                    break;
                case "transaction":
                    one(options, queues, (m, q, i) -> sent(m, i, producer.sendMessageInTransaction(m, i)));
                    break;
                default:
                    throw new IllegalArgumentException("no such mode: " + options.need("mode"));
            }
            Thread.sleep(options.longNumber("lingerMs", 0));  // for requests of the broker
        } finally {
            producer.shutdown();
        }
    }

    /** Returns a body whose byte j is (31 i + 7 j) mod 256 for message i, so that readers can compute it. */
    static byte[] body(int index, int size) {
        byte[] bytes = new byte[size];
        for (int j = 0; j < size; j++) {
            bytes[j] = (byte) (31 * index + 7 * j);
        }
        return bytes;
    }

    private static Message message(Options options, int index) {
        List<String> sizes = options.list("sizes", "100"), tags = options.list("tags", "");
        int size = Integer.parseInt(sizes.get(index % sizes.size()));
        Message message = new Message(options.need("topic"), body(index, size));
        if (!tags.isEmpty()) {
            message.setTags(tags.get(index % tags.size()));
        }
        if (options.has("keys")) {
            message.setKeys(options.need("keys") + index);
        }
        message.setFlag(options.number("flag", 0));
        if (options.has("delay")) {
            message.setDelayTimeLevel(options.number("delay", 0));
        }
        for (String property : options.all("property")) {
            int colon = property.indexOf(':');
            message.putUserProperty(property.substring(0, colon), property.substring(colon + 1));
        }
        return message;
    }

    interface OneSend {
        void send(Message message, MessageQueue queue, int index) throws Exception;
    }

    private static void one(Options options, List<MessageQueue> queues, OneSend send) throws Exception {
        int first = options.number("first", 0), end = first + options.number("count", 1);
        long retryMs = options.longNumber("retryMs", 0), paceMs = options.longNumber("paceMs", 0);
        for (int index = first; index < end && !Probe.isOver(options); index++) {
            Message message = message(options, index);
            long giveUp = System.currentTimeMillis() + retryMs;
            while (true) {
                try {
                    send.send(message, queues.get(index % queues.size()), index);
                    break;
                } catch (Exception fault) {
                    failed(index, fault);
                    if (System.currentTimeMillis() >= giveUp || Probe.isOver(options)) {
                        break;
                    }
                    Thread.sleep(100);
                }
            }
            Thread.sleep(paceMs);
        }
    }

    private static void async(Options options, List<MessageQueue> queues, DefaultMQProducer producer) throws Exception {
        Semaphore window = new Semaphore(ASYNC_WINDOW);
        CountDownLatch open = new CountDownLatch(options.number("count", 1));
        one(options, queues, (message, queue, index) -> {
            window.acquire();
            SendCallback callback = new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    sent(message, index, result);
                    window.release();
                    open.countDown();
                }

                @Override
                public void onException(Throwable fault) {
                    failed(index, fault);
                    window.release();
                    open.countDown();
                }
            };
            try {
                producer.send(message, queue, callback);
            } catch (Exception fault) {
                callback.onException(fault);
            }
        });
        if (!open.await(2L * TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(open.getCount() + " asynchronous sends without an end");
        }
    }

    private static void batch(Options options, List<MessageQueue> queues, DefaultMQProducer producer) {
        int first = options.number("first", 0), end = first + options.number("count", 1);
        int size = options.number("batch", 8);
        for (int start = first; start < end; start += size) {
            List<Message> messages = new ArrayList<>();
            for (int index = start; index < Math.min(end, start + size); index++) {
                messages.add(message(options, index));
            }
            try {
                SendResult result = producer.send(messages, queues.get(start / size % queues.size()));
                JsonLine.event("batch").with("first", start).with("count", messages.size())
                    .with("status", result.getSendStatus()).with("queueId", result.getMessageQueue().getQueueId())
                    .with("queueOffset", result.getQueueOffset()).with("msgId", result.getMsgId())
                    .with("offsetMsgId", result.getOffsetMsgId()).print();
            } catch (Exception fault) {
                failed(start, fault);
            }
        }
    }

    private static TransactionMQProducer transactionProducer(Options options) {
        String outcomes = options.text("outcomes", "c"), checks = options.text("checks", "u");
        TransactionMQProducer producer = new TransactionMQProducer(options.text("group", "probe-transactions"), Probe.hook(options));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object index) {
                return state(outcomes.charAt((Integer) index % outcomes.length()));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String digits = String.valueOf(message.getKeys()).replaceAll("\\D", "");
                int index = digits.isEmpty() ? 0 : Integer.parseInt(digits);
                LocalTransactionState answer = state(checks.charAt(index % checks.length()));
                JsonLine.event("checked").with("index", index).with("answer", answer)
                    .with("topic", message.getTopic()).with("queueId", message.getQueueId())
                    .with("msgId", message.getMsgId()).with("transactionId", message.getTransactionId())
                    .with("crc", UtilAll.crc32(message.getBody())).with("sysFlag", message.getSysFlag())
                    .with("flag", message.getFlag()).with("properties", message.getProperties()).print();
                return answer;
            }
        });
        return producer;
    }

    private static LocalTransactionState state(char letter) {
        switch (letter) {
            case 'c':
                return LocalTransactionState.COMMIT_MESSAGE;
            case 'r':
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }

    private static List<MessageQueue> queues(DefaultMQProducer producer, Options options) throws Exception {
        if (options.has("auto")) {
            return Collections.singletonList(null);  // the client chooses, at first from the route of the default topic
        }
        long giveUp = System.currentTimeMillis() + options.longNumber("retryMs", 0);
        while (true) {
            try {
                List<MessageQueue> queues = new ArrayList<>(producer.fetchPublishMessageQueues(options.need("topic")));
                Collections.sort(queues);
                if (options.has("queue")) {
                    queues.removeIf(queue -> queue.getQueueId() != options.number("queue", 0));
                }
                return queues;
            } catch (MQClientException fault) {
                if (System.currentTimeMillis() >= giveUp) {
                    throw fault;
                }
                Thread.sleep(200);
            }
        }
    }

    private static void sent(Message message, int index, SendResult result) {
        JsonLine line = JsonLine.event("sent").with("index", index).with("bodyLength", message.getBody().length)
            .with("at", System.currentTimeMillis())
            .with("crc", UtilAll.crc32(message.getBody())).with("keys", message.getKeys())
            .with("tags", message.getTags());
        if (result != null) {
            line.with("status", result.getSendStatus()).with("brokerName", result.getMessageQueue().getBrokerName())
                .with("queueId", result.getMessageQueue().getQueueId()).with("queueOffset", result.getQueueOffset())
                .with("msgId", result.getMsgId()).with("offsetMsgId", result.getOffsetMsgId())
                .with("transactionId", result.getTransactionId());
        }
        line.print();
    }

    private static void failed(int index, Throwable fault) {
        JsonLine line = JsonLine.event("failed").with("index", index).with("error", String.valueOf(fault));
        for (Throwable cause = fault; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException) {
                line.with("code", ((MQBrokerException) cause).getResponseCode());
                break;
            }
        }
        line.print();
    }
}
