import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The consumer side of the probe: prints every field of the messages that the broker returns. */
final class Reading {
    private static final int PULL_SIZE = 32;
    private static final int MAX_EMPTY_PULLS = 20;

    interface QueueWork {
        void run(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception;
    }

    static void dump(Options options) throws Exception {
        eachQueue(options, (consumer, queue) -> {
            long min = consumer.minOffset(queue), max = consumer.maxOffset(queue);
            long offset = options.longNumber("from", min), count = 0;
            for (int empty = 0; offset < max && empty < MAX_EMPTY_PULLS; ) {
                PullResult result = consumer.pull(queue, "*", offset, PULL_SIZE);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        print("message", message);
                        count++;
                    }
                } else {
                    empty++;
                    JsonLine.event("pull").with("queueId", queue.getQueueId()).with("offset", offset)
                        .with("status", result.getPullStatus()).with("next", result.getNextBeginOffset()).print();
                    Thread.sleep(50);
                }
                offset = result.getNextBeginOffset();
            }
            JsonLine.event("queue").with("topic", queue.getTopic()).with("brokerName", queue.getBrokerName())
                .with("queueId", queue.getQueueId()).with("min", min).with("max", max).with("count", count).print();
        });
    }

    static void offsets(Options options) throws Exception {
        eachQueue(options, (consumer, queue) -> {
            JsonLine line = JsonLine.event("queue").with("topic", queue.getTopic())
                .with("brokerName", queue.getBrokerName()).with("queueId", queue.getQueueId())
                .with("min", consumer.minOffset(queue)).with("max", consumer.maxOffset(queue))
                .with("earliest", consumer.earliestMsgStoreTime(queue));
            if (options.has("group")) {
                line.with("consumed", consumer.fetchConsumeOffset(queue, true));
            }
            line.print();
        });
    }

    static void search(Options options) throws Exception {
        eachQueue(options, (consumer, queue) -> JsonLine.event("search").with("queueId", queue.getQueueId())
            .with("offset", consumer.searchOffset(queue, options.longNumber("time", 0))).print());
    }

    static void query(Options options) throws Exception {
        Probe.withAdmin(options, admin -> {
            List<MessageExt> found = new ArrayList<>(admin.queryMessage(options.need("topic"), options.need("key"),
                options.number("max", 32), options.longNumber("begin", 0),
                options.longNumber("end", System.currentTimeMillis() + 3_600_000)).getMessageList());
            found.sort(Comparator.comparingLong(MessageExt::getCommitLogOffset));
            for (MessageExt message : found) {
                print("message", message);
            }
        });
    }

    static void view(Options options) throws Exception {
        Probe.withAdmin(options, admin -> print("message", admin.viewMessage(options.need("topic"), options.need("id"))));
    }

    static void consume(Options options) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.need("group"), Probe.hook(options),
            new AllocateMessageQueueAveragely(), options.has("traced"), null);
        consumer.setInstanceName(Probe.freshName("consumer"));
        consumer.setNamesrvAddr(options.need("namesrv"));
        if (options.has("pollMs")) {
            consumer.setPollNameServerInterval(options.number("pollMs", 0));
        }
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.setAwaitTerminationMillisWhenShutdown(5000);  // the offset of the last message is stored as well
        String expression = options.text("expression", "*");
        if (options.text("type", "TAG").equals("SQL92")) {
            consumer.subscribe(options.need("topic"), MessageSelector.bySql(expression));
        } else {
            consumer.subscribe(options.need("topic"), expression);
        }
        if (options.text("model", "clustering").equals("broadcasting")) {
            Broadcasting.use(consumer);
        }
        consumer.setMaxReconsumeTimes(options.number("maxTimes", -1));
        AtomicInteger count = new AtomicInteger();
        AtomicLong last = new AtomicLong(System.currentTimeMillis());
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
        while (options.has("until") && !Probe.isOver(options)) {
            Thread.sleep(50);
        }
        long max = options.longNumber("max", Long.MAX_VALUE), idleMs = options.longNumber("idleMs", 1500);
        long firstBy = System.currentTimeMillis() + options.longNumber("firstMs", 10_000);
        while (count.get() < max && (count.get() > 0 ? System.currentTimeMillis() - last.get() < idleMs
            : System.currentTimeMillis() < firstBy)) {
            Thread.sleep(50);
        }
        consumer.shutdown();
        JsonLine.event("consumed").with("count", count.get()).print();
    }

    /** Prints the messages; returns false for the first {@code refuse} deliveries of a message, then true. */
    private static boolean received(List<MessageExt> messages, int refuse, AtomicInteger count, AtomicLong last) {
        boolean taken = true;
        for (MessageExt message : messages) {
            taken &= message.getReconsumeTimes() >= refuse;
            describe("received", message).with("seenTimestamp", System.currentTimeMillis()).print();
        }
        last.set(System.currentTimeMillis());
        count.addAndGet(messages.size());
        return taken;
    }

    private static void eachQueue(Options options, QueueWork work) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group", "probe-reader"), Probe.hook(options));
        consumer.setInstanceName(Probe.freshName("reader"));
        consumer.setNamesrvAddr(options.need("namesrv"));
        consumer.start();
        try {
            for (MessageQueue queue : queues(consumer, options)) {
                work.run(consumer, queue);
            }
        } finally {
            consumer.shutdown();
        }
    }

    /** A system topic has no route: its queues are given, and requested from the broker of the topic "via". */
    private static List<MessageQueue> queues(DefaultMQPullConsumer consumer, Options options) throws Exception {
        List<MessageQueue> queues = new ArrayList<>();
        if (options.has("via")) {
            MessageQueue known = consumer.fetchSubscribeMessageQueues(options.need("via")).iterator().next();
            for (String id : options.list("queues", "0")) {
                queues.add(new MessageQueue(options.need("topic"), known.getBrokerName(), Integer.parseInt(id)));
            }
        } else {
            queues.addAll(consumer.fetchSubscribeMessageQueues(options.need("topic")));
        }
        Collections.sort(queues);
        return queues;
    }

    private static void print(String event, MessageExt message) {
        describe(event, message).print();
    }

    private static JsonLine describe(String event, MessageExt message) {
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        return JsonLine.event(event).with("topic", message.getTopic()).with("queueId", message.getQueueId())
            .with("queueOffset", message.getQueueOffset()).with("commitLogOffset", message.getCommitLogOffset())
            .with("storeSize", message.getStoreSize()).with("sysFlag", message.getSysFlag())
            .with("flag", message.getFlag()).with("bornTimestamp", message.getBornTimestamp())
            .with("bornHost", String.valueOf(message.getBornHost()))
            .with("storeTimestamp", message.getStoreTimestamp())
            .with("storeHost", String.valueOf(message.getStoreHost())).with("msgId", message.getMsgId())
            .with("offsetMsgId", message instanceof MessageClientExt
                ? ((MessageClientExt) message).getOffsetMsgId() : null)
            .with("reconsumeTimes", message.getReconsumeTimes())
            .with("preparedTransactionOffset", message.getPreparedTransactionOffset())
            .with("bodyCrc", message.getBodyCRC()).with("crc", UtilAll.crc32(body)).with("bodyLength", body.length)
            .with("properties", message.getProperties());
    }
}
