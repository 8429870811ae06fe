import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Fills a broker of 5.3.3 with what 4.x has, too, and prints what a consumer receives: Classic NAMESRV BROKER_ADDRESS
 * COMMAND..., each command one argument of words that are separated by spaces. "dump" prints lines of a kind, a tab, and
 * JSON.
 */
public final class Classic {
    private static final int TIMEOUT_MS = 10_000;
    private static final int QUIET_MS = 3_000;
    private final String namesrv;
    private final String broker;
    private final DefaultMQProducer producer = new DefaultMQProducer("classic");

    private Classic(String namesrv, String broker) throws Exception {
        this.namesrv = namesrv;
        this.broker = broker;
        start(producer);
    }

    public static void main(String[] words) {
        try {
            Classic classic = new Classic(words[0], words[1]);
            for (int i = 2; i < words.length; i++) {
                System.err.println(words[i]);
                classic.run(words[i].split(" "));
            }
            Runtime.getRuntime().halt(0);
        } catch (Throwable fault) {
            fault.printStackTrace();
            Runtime.getRuntime().halt(1);  // the threads of the clients would go on
        }
    }

    private void start(DefaultMQProducer made) throws MQClientException {
        made.setNamesrvAddr(namesrv);
        made.setSendMsgTimeout(TIMEOUT_MS);
        made.start();
    }

    private void run(String[] words) throws Exception {
        switch (words[0]) {
            case "leads":  // wait until the broker is the master of its cluster
                awaitMaster();
                break;
            case "topics":  // NAME=QUEUES...
                topics(Arrays.asList(words).subList(1, words.length));
                break;
            case "send":  // topic, count, sizes, one of sync, async, oneway, ordered, batch; then NAME=VALUE...
                send(words[1], messages(words), words[4]);
                break;
            case "transaction":  // topic, count, sizes, one of c (commit), r (roll back), u (unknown) for each; NAME=VALUE...
                transaction(words[1], messages(words), words[4]);
                break;
            case "consume":  // topic, group, tags, one of clustering, broadcasting, orderly, refused
                consume(words[1], words[2], words[3], words[4]);
                break;
            case "dump":  // a topic with a route; then TOPIC=QUEUES...
                dump(words[1], Arrays.asList(words).subList(2, words.length));
                break;
            case "wait":
                Thread.sleep(Integer.parseInt(words[1]) * 1000L);
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private void awaitMaster() throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(namesrv);
        admin.start();
        for (int tries = 0; !masters(admin).equals(Collections.singleton(broker)); tries++) {
            if (tries == 600) {
                throw new IllegalStateException(broker + " does not lead: " + masters(admin));
            }
            Thread.sleep(200);
        }
        admin.shutdown();
    }

    private static Set<String> masters(DefaultMQAdminExt admin) throws Exception {
        return admin.examineBrokerClusterInfo().getBrokerAddrTable().values().stream()
            .map(each -> each.getBrokerAddrs().get(MixAll.MASTER_ID))
            .filter(Objects::nonNull).collect(Collectors.toSet());
    }

    private void topics(List<String> topics) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(namesrv);
        admin.start();
        for (String topic : topics) {
            int queues = Integer.parseInt(topic.split("=")[1]);
            admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic.split("=")[0], queues, queues, 6));
        }
        admin.shutdown();
        for (String topic : topics) {
            awaitRoute(topic.split("=")[0]);
        }
    }

    private void awaitRoute(String topic) throws Exception {
        for (int tries = 0; ; tries++) {
            try {
                producer.fetchPublishMessageQueues(topic);
                return;
            } catch (MQClientException fault) {
                if (tries == 150) {
                    throw fault;
                }
                Thread.sleep(200);
            }
        }
    }

    /** Returns the messages of a command. KEYS=x are x-0, x-1, and so on, every tenth also x-common; TAGS=a,b in turns. */
    private static List<Message> messages(String[] words) {
        String[] sizes = words[3].split(",");
        List<Message> found = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(words[2]); i++) {
            byte[] body = new byte[Integer.parseInt(sizes[i % sizes.length])];
            for (int j = 0; j < body.length; j++) {
                body[j] = (byte) (31 * i + 7 * j);
            }
            Message message = new Message(words[1], body);
            message.putUserProperty("seq", String.valueOf(i));
            for (int j = 5; j < words.length; j++) {
                String name = words[j].split("=")[0], value = words[j].split("=")[1];
                if (name.equals("KEYS")) {
                    message.setKeys(value + "-" + i + (i % 10 == 0 ? " " + value + "-common" : ""));
                } else if (name.equals("TAGS")) {
                    message.setTags(value.split(",")[i % value.split(",").length]);
                } else if (name.equals("DELAY")) {
                    message.setDelayTimeLevel(Integer.parseInt(value));
                } else if (name.equals("FLAG")) {
                    message.setFlag(Integer.parseInt(value));
                } else {
                    message.putUserProperty(name, value);
                }
            }
            found.add(message);
        }
        return found;
    }

    private void send(String topic, List<Message> messages, String mode) throws Exception {
        List<MessageQueue> queues = new ArrayList<>(producer.fetchPublishMessageQueues(topic));
        queues.sort(null);
        if (mode.equals("batch")) {
            for (int i = 0; i < messages.size(); i += 8) {
                producer.send(messages.subList(i, Math.min(i + 8, messages.size())));
            }
        } else if (mode.equals("async")) {
            CountDownLatch open = new CountDownLatch(messages.size());
            for (Message message : messages) {
                producer.send(message, new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        open.countDown();
                    }

                    @Override
                    public void onException(Throwable fault) {
                        fault.printStackTrace();
                    }
                });
            }
            if (!open.await(TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
                throw new IllegalStateException(open.getCount() + " of " + topic + " are not answered");
            }
        } else {
            for (int i = 0; i < messages.size(); i++) {
                if (mode.equals("oneway")) {
                    producer.sendOneway(messages.get(i));
                } else if (mode.equals("ordered")) {
                    producer.send(messages.get(i), (all, message, at) -> queues.get((Integer) at), i % queues.size());
                } else {
                    producer.send(messages.get(i));
                }
            }
        }
    }

    private void transaction(String topic, List<Message> messages, String outcomes) throws Exception {
        TransactionMQProducer transactions = new TransactionMQProducer("transactions");
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object at) {
                switch (outcomes.charAt((Integer) at % outcomes.length())) {
                    case 'c':
                        return LocalTransactionState.COMMIT_MESSAGE;
                    case 'r':
                        return LocalTransactionState.ROLLBACK_MESSAGE;
                    default:
                        return LocalTransactionState.UNKNOW;
                }
            }

            /** Commits, when the broker asks, every other message that is undecided. */
            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                boolean commits = Integer.parseInt(message.getUserProperty("seq")) % 4 == 2;
                return commits ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.UNKNOW;
            }
        });
        start(transactions);
        for (int i = 0; i < messages.size(); i++) {
            transactions.sendMessageInTransaction(messages.get(i), i);
        }
        Thread.sleep(2L * QUIET_MS);
    }

    /** Consumes until nothing has arrived for some seconds. */
    private void consume(String topic, String group, String tags, String mode) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.subscribe(topic, tags);
        consumer.setMaxReconsumeTimes(1);
        consumer.setMessageModel(mode.equals("broadcasting") ? MessageModel.BROADCASTING : MessageModel.CLUSTERING);
        AtomicInteger count = new AtomicInteger();
        AtomicLong quietSince = new AtomicLong(System.currentTimeMillis() + TIMEOUT_MS);
        Consumer<List<MessageExt>> taken = messages -> {
            count.addAndGet(messages.size());
            quietSince.set(System.currentTimeMillis());
        };
        if (mode.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                taken.accept(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                taken.accept(messages);
                context.setDelayLevelWhenNextConsume(1);
                return mode.equals("refused") ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        while (System.currentTimeMillis() < quietSince.get() + QUIET_MS) {
            Thread.sleep(50);
        }
        consumer.shutdown();
        System.out.println(String.join("\t", "consumed", topic, group, String.valueOf(count.get())));
    }

    /**
     * Prints all messages of topics, from each queue's smallest offset on. A system topic has no route: the first topic
     * must have one, from which the consumer knows the address of the broker.
     */
    private void dump(String known, List<String> topics) throws Exception {
        String name = producer.fetchPublishMessageQueues(known).get(0).getBrokerName();
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("dump");
        consumer.setNamesrvAddr(namesrv);
        consumer.start();
        for (String topic : topics) {
            for (int i = 0; i < Integer.parseInt(topic.split("=")[1]); i++) {
                dump(consumer, new MessageQueue(topic.split("=")[0], name, i));
            }
        }
        consumer.shutdown();
    }

    private static void dump(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        long min = consumer.minOffset(queue), max = consumer.maxOffset(queue);
        Map<String, Object> line = new TreeMap<>();
        line.put("topic", queue.getTopic());
        line.put("queueId", queue.getQueueId());
        line.put("min", min);
        line.put("max", max);
        print("queue", line);
        for (long offset = min; offset < max; ) {
            PullResult result = consumer.pull(queue, "*", offset, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                result.getMsgFoundList().forEach(Classic::print);
            }
            if (result.getNextBeginOffset() <= offset) {
                throw new IllegalStateException(queue + " at " + offset + ": " + result.getPullStatus());
            }
            offset = result.getNextBeginOffset();
        }
    }

    private static void print(MessageExt message) {
        Map<String, Object> line = new TreeMap<>();
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("commitLogOffset", message.getCommitLogOffset());
        line.put("storeSize", message.getStoreSize());
        line.put("sysFlag", message.getSysFlag());
        line.put("flag", message.getFlag());
        line.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("bornTimestamp", message.getBornTimestamp());
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("bornHost", String.valueOf(message.getBornHost()));
        line.put("storeHost", String.valueOf(message.getStoreHost()));
        line.put("msgId", message.getMsgId());
        line.put("offsetMsgId", message instanceof MessageClientExt ? ((MessageClientExt) message).getOffsetMsgId() : null);
        line.put("bodyLen", message.getBody().length);
        line.put("bodyCRC", message.getBodyCRC());
        line.put("crc", UtilAll.crc32(message.getBody()));
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        properties.keySet().removeAll(Arrays.asList("MIN_OFFSET", "MAX_OFFSET"));
        line.put("props", properties);
        print("message", line);
    }

    private static void print(String kind, Map<String, Object> line) {
        System.out.println(kind + "\t" + RemotingSerializable.toJson(line, false));
    }
}
