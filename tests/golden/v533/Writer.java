import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Fills a broker of 5.3.3 with what only 5.x has: Writer NAMESRV BROKER_ADDRESS COMMAND..., each command one argument
 * of words that are separated by spaces. It prints one line of tab-separated words for each message.
 */
public final class Writer {
    private static final int TIMEOUT_MS = 10_000;
    private final String broker;
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt();
    private final DefaultMQProducer producer = new DefaultMQProducer("writer");
    private int sent = 0;

    private Writer(String namesrv, String broker) throws Exception {
        this.broker = broker;
        admin.setNamesrvAddr(namesrv);
        admin.start();
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.start();
    }

    public static void main(String[] words) throws Exception {
        Writer writer = new Writer(words[0], words[1]);
        for (int i = 2; i < words.length; i++) {
            writer.run(words[i].split(" "));
        }
        Runtime.getRuntime().halt(0);
    }

    private void run(String[] words) throws Exception {
        switch (words[0]) {
            case "topic":
                topic(words[1], words.length > 2 ? words[2] : "");
                break;
            case "send":  // topic, count, further properties NAME=VALUE
                for (int i = 0; i < Integer.parseInt(words[2]); i++) {
                    Message message = message(words[1]);
                    for (int j = 3; j < words.length; j++) {
                        String[] pair = words[j].split("=");
                        MessageAccessor.putProperty(message, pair[0], pair[1]);
                    }
                    print("sent", message, producer.send(message), "");
                }
                break;
            case "batch":  // topic, messages in the batch
                List<Message> messages = new ArrayList<>();
                for (int i = 0; i < Integer.parseInt(words[2]); i++) {
                    messages.add(message(words[1]));
                }
                SendResult result = producer.send(messages);
                print("batch", messages.get(0), result, String.valueOf(messages.size()));
                break;
            case "timer":  // topic, count, first delay in seconds, "cancel" for one that takes itself back
                timers(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]), words.length > 4);
                break;
            case "pop":  // topic, group, count, invisible seconds, how many are acknowledged
                pop(words[1], words[2], Integer.parseInt(words[3]), Integer.parseInt(words[4]), Integer.parseInt(words[5]));
                break;
            case "wait":
                Thread.sleep(Integer.parseInt(words[1]) * 1000L);
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private void topic(String name, String attribute) throws Exception {
        TopicConfig config = new TopicConfig(name, 1, 1, 6);
        if (!attribute.isEmpty()) {
            Map<String, String> attributes = new HashMap<>();
            attributes.put("+" + attribute.split("=")[0], attribute.split("=")[1]);
            config.setAttributes(attributes);
        }
        admin.createAndUpdateTopicConfig(broker, config);
        long giveUp = System.currentTimeMillis() + 30_000;
        while (true) {
            try {
                producer.fetchPublishMessageQueues(name);
                return;
            } catch (Exception fault) {
                if (System.currentTimeMillis() > giveUp) {
                    throw fault;
                }
                Thread.sleep(200);
            }
        }
    }

    private Message message(String topic) {
        Message message = new Message(topic, "tag", "key" + sent, ("body " + sent).getBytes());
        sent++;
        return message;
    }

    private void timers(String topic, int count, int seconds, boolean cancel) throws Exception {
        for (int i = 0; i < count; i++) {
            long due = System.currentTimeMillis() / 1000 * 1000 + (seconds + i) * 1000L;
            Message message = message(topic);
            message.setDeliverTimeMs(due);
            print(cancel ? "cancelled" : "timer", message, producer.send(message), String.valueOf(due));
            if (cancel) {
                Message end = message(topic);
                end.setDeliverTimeMs(due);
                MessageAccessor.putProperty(end, MessageConst.PROPERTY_TIMER_DEL_UNIQKEY,
                    message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX));
                print("cancel", end, producer.send(end), String.valueOf(due));
            }
        }
    }

    private void pop(String topic, String group, int count, int seconds, int acked) throws Exception {
        MQClientAPIImpl api = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
        String brokerName = producer.fetchPublishMessageQueues(topic).get(0).getBrokerName();
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(-1);
        header.setMaxMsgNums(count);
        header.setInvisibleTime(seconds * 1000L);
        header.setPollTime(0);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(1);
        header.setExpType("TAG");
        header.setExp("*");
        CompletableFuture<PopResult> popped = new CompletableFuture<>();
        api.popMessageAsync(brokerName, broker, header, TIMEOUT_MS, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                popped.complete(result);
            }

            @Override
            public void onException(Throwable fault) {
                popped.completeExceptionally(fault);
            }
        });
        PopResult result = popped.get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
        int number = 0;
        for (MessageExt message : result.getMsgFoundList()) {
            boolean ack = number++ < acked;
            if (ack) {
                ack(api, message, topic, group);
            }
            System.out.println(String.join("\t", ack ? "acked" : "popped", topic, group, message.getKeys(),
                String.valueOf(message.getQueueOffset()), message.getMsgId()));
        }
    }

    private void ack(MQClientAPIImpl api, MessageExt message, String topic, String group) throws Exception {
        String[] handle = ExtraInfoUtil.split(message.getProperty(MessageConst.PROPERTY_POP_CK));
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setTopic(ExtraInfoUtil.getRealTopic(handle, topic, group));
        header.setConsumerGroup(group);
        header.setQueueId(ExtraInfoUtil.getQueueId(handle));
        header.setOffset(ExtraInfoUtil.getQueueOffset(handle));
        header.setExtraInfo(message.getProperty(MessageConst.PROPERTY_POP_CK));
        CompletableFuture<AckResult> acked = new CompletableFuture<>();
        api.ackMessageAsync(broker, TIMEOUT_MS, new AckCallback() {
            @Override
            public void onSuccess(AckResult result) {
                acked.complete(result);
            }

            @Override
            public void onException(Throwable fault) {
                acked.completeExceptionally(fault);
            }
        }, header);
        acked.get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
    }

    private static void print(String event, Message message, SendResult result, String more) {
        System.out.println(String.join("\t", event, message.getTopic(), message.getKeys(), more,
            String.valueOf(result.getQueueOffset()), result.getSendStatus().name(), result.getMsgId()));
    }
}
