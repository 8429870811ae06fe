import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The commands send, consume, and transact of the probe, with nothing but the client's own jar, of any version from 4.2
 * to 5.x. What has moved or changed between these versions is used by reflection.
 */
public final class ClientProbe {
    private static final String PRODUCER = "org.apache.rocketmq.client.producer.";

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        JsonLine.event("ready").print();
        System.setOut(System.err);
        for (String line; (line = input.readLine()) != null; ) {
            List<String> words = Arrays.asList(line.trim().split(" "));
            Options options = new Options(words.subList(1, words.size()));
            try {
                switch (words.get(0)) {
                    case "send":
                        send(options);
                        break;
                    case "consume":
                        consume(options);
                        break;
                    case "transact":
                        transact(options);
                        break;
                    default:
                        throw new IllegalArgumentException("no such command: " + words.get(0));
                }
                JsonLine.event("done").print();
            } catch (Throwable fault) {
                fault.printStackTrace();
                JsonLine.event("fault").with("error", String.valueOf(fault)).print();
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static String freshName(String kind) {
        return kind + Long.toString(System.nanoTime(), 36);
    }

    private static byte[] body(int index, int size) {
        byte[] bytes = new byte[size];
        for (int j = 0; j < size; j++) {
            bytes[j] = (byte) (31 * index + 7 * j);
        }
        return bytes;
    }

    private static Message message(Options options, int index) {
        List<String> sizes = options.list("sizes", "100"), tags = options.list("tags", "");
        Message message = new Message(options.need("topic"), body(index, Integer.parseInt(sizes.get(index % sizes.size()))));
        if (!tags.isEmpty()) {
            message.setTags(tags.get(index % tags.size()));
        }
        if (options.has("keys")) {
            message.setKeys(options.need("keys") + index);
        }
        if (options.has("delay")) {
            message.setDelayTimeLevel(options.number("delay", 0));
        }
        for (String property : options.all("property")) {
            int colon = property.indexOf(':');
            message.putUserProperty(property.substring(0, colon), property.substring(colon + 1));
        }
        return message;
    }

    // -- Producers

    private static void send(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group", "probe-producers"));
        start(producer, options);
        int first = options.number("first", 0), end = first + options.number("count", 1);
        int shards = options.number("shards", 0);
        CountDownLatch open = new CountDownLatch(end - first);
        List<Message> batch = new ArrayList<>();
        try {
            for (int index = first; index < end; index++) {
                Message message = message(options, index);
                switch (options.text("mode", "sync")) {
                    case "sync":
                        sent(index, shards == 0 ? patient(options, () -> producer.send(message))
                            : producer.send(message, (queues, m, key) -> queues.get((int) key % queues.size()), index % shards));
                        break;
                    case "async":
                        producer.send(message, callback(index, open));
                        break;
                    case "oneway":
                        producer.sendOneway(message);
                        break;
                    default:
                        batch.add(message);
                }
            }
            if (!batch.isEmpty()) {
                sent(first, producer.send(batch));
            }
            if (options.text("mode", "sync").equals("async") && !open.await(10, TimeUnit.SECONDS)) {
                throw new IllegalStateException(open.getCount() + " asynchronous sends without an end");
            }
            Thread.sleep(options.text("mode", "sync").equals("oneway") ? 500 : 0);  // nothing reports the last send
        } finally {
            producer.shutdown();
        }
    }

    /** Sends again for up to {@code retryMs} after a failure, as a program does that must not lose a message. */
    private static SendResult patient(Options options, Callable<SendResult> send) throws Exception {
        long giveUp = System.currentTimeMillis() + options.longNumber("retryMs", 0);
        while (true) {
            try {
                return send.call();
            } catch (Exception fault) {
                if (System.currentTimeMillis() >= giveUp) {
                    throw fault;
                }
                Thread.sleep(100);
            }
        }
    }

    private static void start(DefaultMQProducer producer, Options options) throws Exception {
        producer.setInstanceName(freshName("producer"));
        producer.setNamesrvAddr(options.need("namesrv"));
        producer.setSendMsgTimeout(10_000);
        producer.start();
    }

    private static SendCallback callback(int index, CountDownLatch open) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                sent(index, result);
                open.countDown();
            }

            @Override
            public void onException(Throwable fault) {
                JsonLine.event("failed").with("index", index).with("error", String.valueOf(fault)).print();
                open.countDown();
            }
        };
    }

    private static void sent(int index, SendResult result) {
        JsonLine.event("sent").with("index", index).with("status", result.getSendStatus()).with("msgId", result.getMsgId())
            .with("queueId", result.getMessageQueue().getQueueId()).with("queueOffset", result.getQueueOffset()).print();
    }

    // -- Transactions: the API of 4.2 was replaced in 4.3

    private static void transact(Options options) throws Exception {
        String outcomes = options.text("outcomes", "c"), checks = options.text("checks", "c");
        TransactionMQProducer producer = new TransactionMQProducer(options.text("group", "probe-transactions"));
        InvocationHandler answers = (proxy, method, arguments) -> {
            switch (method.getName()) {
                case "executeLocalTransaction":
                case "executeLocalTransactionBranch":
                    return state(outcomes, number((Message) arguments[0]));
                case "checkLocalTransaction":
                case "checkLocalTransactionState":
                    int index = number((Message) arguments[0]);
                    JsonLine.event("checked").with("index", index)
                        .with("answer", String.valueOf(checks.charAt(index % checks.length()))).print();
                    return state(checks, index);
                case "hashCode":
                    return System.identityHashCode(proxy);
                case "equals":
                    return proxy == arguments[0];
                default:
                    return "answers";
            }
        };
        boolean old = !exists(PRODUCER + "TransactionListener");
        Class<?> listener = Class.forName(PRODUCER + (old ? "TransactionCheckListener" : "TransactionListener"));
        Class<?> argument = old ? Class.forName(PRODUCER + "LocalTransactionExecuter") : null;
        producer.getClass().getMethod("set" + listener.getSimpleName(), listener).invoke(producer, proxy(listener, answers));
        Method send = old ? producer.getClass().getMethod("sendMessageInTransaction", Message.class, argument, Object.class)
            : producer.getClass().getMethod("sendMessageInTransaction", Message.class, Object.class);
        start(producer, options);
        try {
            for (int index = 0; index < options.number("count", 1); index++) {
                Message message = message(options, index);
                sent(index, (SendResult) (old ? send.invoke(producer, message, proxy(argument, answers), null)
                    : send.invoke(producer, message, null)));
            }
            Thread.sleep(options.longNumber("lingerMs", 0));
        } finally {
            producer.shutdown();
        }
    }

    private static boolean exists(String name) {
        try {
            Class.forName(name);
            return true;
        } catch (ClassNotFoundException absent) {
            return false;
        }
    }

    private static Object proxy(Class<?> kind, InvocationHandler handler) {
        return Proxy.newProxyInstance(kind.getClassLoader(), new Class<?>[] {kind}, handler);
    }

    private static int number(Message message) {
        return Integer.parseInt(message.getKeys().replaceAll("\\D", ""));
    }

    private static LocalTransactionState state(String letters, int index) {
        switch (letters.charAt(index % letters.length())) {
            case 'c':
                return LocalTransactionState.COMMIT_MESSAGE;
            case 'r':
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }

    // -- Consumers

    private static void consume(Options options) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.need("group"));
        consumer.setInstanceName(freshName("consumer"));
        consumer.setNamesrvAddr(options.need("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        if (options.text("model", "clustering").equals("broadcasting")) {
            Broadcasting.use(consumer);
        }
        String expression = options.text("expression", "*");
        if (options.text("type", "TAG").equals("SQL92")) {
            consumer.subscribe(options.need("topic"), MessageSelector.bySql(expression));
        } else {
            consumer.subscribe(options.need("topic"), expression);
        }
        AtomicInteger count = new AtomicInteger();
        AtomicLong last = new AtomicLong();
        int refuse = options.number("refuse", 0);
        if (options.text("mode", "concurrently").equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                received(messages, refuse, count, last) ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                received(messages, refuse, count, last) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        long max = options.longNumber("max", Long.MAX_VALUE), idleMs = options.longNumber("idleMs", 1500);
        long firstBy = System.currentTimeMillis() + options.longNumber("firstMs", 10_000);
        while (count.get() < max && (count.get() > 0 ? System.currentTimeMillis() - last.get() < idleMs
            : System.currentTimeMillis() < firstBy)) {
            Thread.sleep(50);
        }
        Thread.sleep(200);  // the last result is still being sent
        consumer.shutdown();
    }

    /** Prints the messages; returns false for the first {@code refuse} deliveries of a message, then true. */
    private static boolean received(List<MessageExt> messages, int refuse, AtomicInteger count, AtomicLong last) {
        boolean taken = true;
        for (MessageExt message : messages) {
            taken &= message.getReconsumeTimes() >= refuse;
            CRC32 crc = new CRC32();
            crc.update(message.getBody());
            JsonLine.event("received").with("topic", message.getTopic()).with("queueId", message.getQueueId())
                .with("queueOffset", message.getQueueOffset()).with("reconsumeTimes", message.getReconsumeTimes())
                .with("crc", crc.getValue()).with("keys", message.getKeys()).with("tags", message.getTags())
                .with("bornTimestamp", message.getBornTimestamp())
                .with("storeTimestamp", message.getStoreTimestamp()).print();
        }
        last.set(System.currentTimeMillis());
        count.addAndGet(messages.size());
        return taken;
    }
}
