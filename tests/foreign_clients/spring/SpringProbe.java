import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.MessageModel;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.annotation.SelectorType;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQPushConsumerLifecycleListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.apache.rocketmq.spring.support.RocketMQHeaders;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

/** The commands send, consume, and transact of the probe with the Spring starter; each runs in a context of its own. */
@Configuration
@EnableAutoConfiguration
@Import({SpringProbe.Tagged.class, SpringProbe.Filtered.class, SpringProbe.Ordered.class, SpringProbe.Broadcast.class,
    SpringProbe.Answers.class})
public class SpringProbe {
    private static final long TIMEOUT_MS = 10_000;
    private static final AtomicInteger COUNT = new AtomicInteger();
    private static final AtomicLong LAST = new AtomicLong();
    private static volatile Options options;

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        JsonLine.event("ready").print();
        System.setOut(System.err);
        for (String line; (line = input.readLine()) != null; ) {
            List<String> words = Arrays.asList(line.trim().split(" "));
            options = new Options(words.subList(1, words.size()));
            try {
                if (words.get(0).equals("consume")) {
                    consume();
                } else {
                    try (ConfigurableApplicationContext context = context("producer")) {
                        RocketMQTemplate template = context.getBean(RocketMQTemplate.class);
                        if (words.get(0).equals("send")) {
                            send(template);
                        } else {
                            transact(template);
                        }
                    }
                }
                JsonLine.event("done").print();
            } catch (Throwable fault) {
                fault.printStackTrace();
                JsonLine.event("fault").with("error", String.valueOf(fault)).print();
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static ConfigurableApplicationContext context(String kind) {
        Map<String, Object> properties = new HashMap<>();
        properties.put("logging.level.root", "WARN");
        properties.put("rocketmq.name-server", options.need("namesrv"));
        properties.put("probe.kind", kind);
        if (kind.equals("producer")) {
            properties.put("rocketmq.producer.group", options.text("group", "spring-producers"));
            properties.put("rocketmq.producer.send-message-timeout", TIMEOUT_MS);
        } else {
            properties.put("probe.topic", options.need("topic"));
            properties.put("probe.group", options.need("group"));
            properties.put("probe.expression", options.text("expression", "*"));
        }
        return new SpringApplicationBuilder(SpringProbe.class).web(WebApplicationType.NONE).logStartupInfo(false)
            .properties(properties).run("--spring.main.banner-mode=off");
    }

    // -- Producers

    private static Message<byte[]> message(int index) {
        List<String> sizes = options.list("sizes", "100");
        byte[] bytes = new byte[Integer.parseInt(sizes.get(index % sizes.size()))];
        for (int j = 0; j < bytes.length; j++) {
            bytes[j] = (byte) (31 * index + 7 * j);
        }
        MessageBuilder<byte[]> builder = MessageBuilder.withPayload(bytes);
        if (options.has("keys")) {
            builder.setHeader(RocketMQHeaders.KEYS, options.need("keys") + index);
        }
        for (String property : options.all("property")) {
            int colon = property.indexOf(':');
            builder.setHeader(property.substring(0, colon), property.substring(colon + 1));
        }
        return builder.build();
    }

    private static String destination(int index) {
        List<String> tags = options.list("tags", "");
        return tags.isEmpty() ? options.need("topic") : options.need("topic") + ":" + tags.get(index % tags.size());
    }

    private static void send(RocketMQTemplate template) throws Exception {
        int first = options.number("first", 0), end = first + options.number("count", 1);
        int shards = options.number("shards", 0);
        CountDownLatch open = new CountDownLatch(end - first);
        List<Message<byte[]>> batch = new ArrayList<>();
        for (int index = first; index < end; index++) {
            Message<byte[]> message = message(index);
            switch (options.text("mode", "sync")) {
                case "sync":
                    sent(index, shards > 0 ? template.syncSendOrderly(destination(index), message, "shard-" + index % shards)
                        : patient(template, destination(index), message));
                    break;
                case "async":
                    template.asyncSend(destination(index), message, callback(index, open));
                    break;
                case "oneway":
                    template.sendOneWay(destination(index), message);
                    break;
                default:
                    batch.add(message);
            }
        }
        if (!batch.isEmpty()) {
            sent(first, template.syncSend(destination(first), batch));
        }
        if (options.text("mode", "sync").equals("async") && !open.await(10, TimeUnit.SECONDS)) {
            throw new IllegalStateException(open.getCount() + " asynchronous sends without an end");
        }
        Thread.sleep(options.text("mode", "sync").equals("oneway") ? 500 : 0);  // nothing reports the last send
    }

    /** Sends again for up to {@code retryMs} after a failure, as a program does that must not lose a message. */
    private static SendResult patient(RocketMQTemplate template, String destination, Message<byte[]> message) throws Exception {
        long giveUp = System.currentTimeMillis() + options.longNumber("retryMs", 0);
        while (true) {
            try {
                return template.syncSend(destination, message, TIMEOUT_MS, options.number("delay", 0));
            } catch (RuntimeException fault) {
                if (System.currentTimeMillis() >= giveUp) {
                    throw fault;
                }
                Thread.sleep(100);
            }
        }
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

    private static void transact(RocketMQTemplate template) throws Exception {
        for (int index = 0; index < options.number("count", 1); index++) {
            sent(index, template.sendMessageInTransaction(destination(index), message(index), index));
        }
        Thread.sleep(options.longNumber("lingerMs", 0));
    }

    @RocketMQTransactionListener
    @ConditionalOnProperty(name = "probe.kind", havingValue = "producer")
    static class Answers implements RocketMQLocalTransactionListener {
        @Override
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object index) {
            return state(options.text("outcomes", "c"), (Integer) index);
        }

        @Override
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            Object keys = message.getHeaders().get(RocketMQHeaders.PREFIX + RocketMQHeaders.KEYS);
            int index = Integer.parseInt(String.valueOf(keys).replaceAll("\\D", ""));
            String checks = options.text("checks", "c");
            JsonLine.event("checked").with("index", index)
                .with("answer", String.valueOf(checks.charAt(index % checks.length()))).print();
            return state(checks, index);
        }

        private static RocketMQLocalTransactionState state(String letters, int index) {
            switch (letters.charAt(index % letters.length())) {
                case 'c':
                    return RocketMQLocalTransactionState.COMMIT;
                case 'r':
                    return RocketMQLocalTransactionState.ROLLBACK;
                default:
                    return RocketMQLocalTransactionState.UNKNOWN;
            }
        }
    }

    // -- Consumers

    private static void consume() throws Exception {
        COUNT.set(0);
        String kind = options.text("type", "TAG").equals("SQL92") ? "filtered"
            : options.text("mode", "concurrently").equals("orderly") ? "ordered"
            : options.text("model", "clustering").equals("broadcasting") ? "broadcast" : "tagged";
        try (ConfigurableApplicationContext context = context(kind)) {
            long max = options.longNumber("max", Long.MAX_VALUE), idleMs = options.longNumber("idleMs", 1500);
            long firstBy = System.currentTimeMillis() + options.longNumber("firstMs", 10_000);
            while (COUNT.get() < max && (COUNT.get() > 0 ? System.currentTimeMillis() - LAST.get() < idleMs
                : System.currentTimeMillis() < firstBy)) {
                Thread.sleep(50);
            }
            Thread.sleep(200);  // the last result is still being sent
        }
    }

    abstract static class Listener implements RocketMQListener<MessageExt>, RocketMQPushConsumerLifecycleListener {
        @Override
        public void prepareStart(DefaultMQPushConsumer consumer) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setPollNameServerInterval(1000);
            consumer.setInstanceName("consumer" + System.nanoTime());  // it names the offsets of a broadcast
        }

        @Override
        public void onMessage(MessageExt message) {
            CRC32 crc = new CRC32();
            crc.update(message.getBody());
            JsonLine.event("received").with("topic", message.getTopic()).with("queueId", message.getQueueId())
                .with("queueOffset", message.getQueueOffset()).with("reconsumeTimes", message.getReconsumeTimes())
                .with("crc", crc.getValue()).with("keys", message.getKeys()).with("tags", message.getTags())
                .with("bornTimestamp", message.getBornTimestamp())
                .with("storeTimestamp", message.getStoreTimestamp()).print();
            LAST.set(System.currentTimeMillis());
            COUNT.incrementAndGet();
            if (message.getReconsumeTimes() < options.number("refuse", 0)) {
                throw new IllegalStateException("refused");
            }
        }
    }

    @RocketMQMessageListener(topic = "${probe.topic}", consumerGroup = "${probe.group}",
        selectorExpression = "${probe.expression}")
    @ConditionalOnProperty(name = "probe.kind", havingValue = "tagged")
    static class Tagged extends Listener {
    }

    @RocketMQMessageListener(topic = "${probe.topic}", consumerGroup = "${probe.group}",
        selectorType = SelectorType.SQL92, selectorExpression = "${probe.expression}")
    @ConditionalOnProperty(name = "probe.kind", havingValue = "filtered")
    static class Filtered extends Listener {
    }

    @RocketMQMessageListener(topic = "${probe.topic}", consumerGroup = "${probe.group}",
        consumeMode = ConsumeMode.ORDERLY)
    @ConditionalOnProperty(name = "probe.kind", havingValue = "ordered")
    static class Ordered extends Listener {
    }

    @RocketMQMessageListener(topic = "${probe.topic}", consumerGroup = "${probe.group}",
        messageModel = MessageModel.BROADCASTING)
    @ConditionalOnProperty(name = "probe.kind", havingValue = "broadcast")
    static class Broadcast extends Listener {
    }
}
