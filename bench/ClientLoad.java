import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** One load of Java's client; the same as client_load.py, with the same arguments and output. */
public final class ClientLoad {
    private static final byte[] BODY = new byte[128];
    private static final int IN_FLIGHT = 256, BATCHES_IN_FLIGHT = 16, BATCH = 16, PULL = 32;
    private static final int CLOCK_EVERY = 64;

    private static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final CountDownLatch ENDED = new CountDownLatch(1);
    private static long count, next, begin, end, startCount, startCpu, startTime;

    /** Counts messages, and returns whether to go on. */
    static synchronized boolean add(int messages) {
        count += messages;
        if (count < next) {
            return ENDED.getCount() > 0;
        }
        next = count + CLOCK_EVERY;
        long now = System.nanoTime();
        if (startTime == 0) {
            if (now >= begin) {
                startCount = count;
                startCpu = SYSTEM.getProcessCpuTime();
                startTime = now;
            }
        } else if (now >= end && ENDED.getCount() > 0) {
            System.out.printf("{\"messages\": %d, \"cpu_s\": %.6f, \"seconds\": %.6f}%n", count - startCount,
                (SYSTEM.getProcessCpuTime() - startCpu) / 1e9, (now - startTime) / 1e9);
            ENDED.countDown();
        }
        return ENDED.getCount() > 0;
    }

    private static Message message(String topic) {
        return new Message(topic, BODY);
    }

    private static void produce(String mode, String namesrv, String topic, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        producer.send(message(topic));
        switch (mode) {
            case "send":
                sendAsync(producer, topic);
                break;
            case "batch":
                for (int i = 0; i < BATCHES_IN_FLIGHT; i++) {
                    inThread(() -> {
                        List<Message> messages = new ArrayList<>();
                        for (int k = 0; k < BATCH; k++) {
                            messages.add(message(topic));
                        }
                        producer.send(messages);
                        return add(BATCH);
                    });
                }
                break;
            default:
                inThread(() -> {
                    producer.sendOneway(message(topic));
                    return add(1);
                });
        }
    }

    private static void sendAsync(DefaultMQProducer producer, String topic) {
        Semaphore window = new Semaphore(IN_FLIGHT);
        inThread(() -> {
            window.acquire();
            producer.send(message(topic), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    window.release();
                    add(1);
                }

                @Override
                public void onException(Throwable fault) {
                    fail(fault);
                }
            });
            return ENDED.getCount() > 0;
        });
    }

    private static void pull(String namesrv, String topic, String group) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.start();
        inThread(() -> {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                for (long offset = 0;;) {
                    PullResult result = consumer.pull(queue, "*", offset, PULL);
                    if (result.getPullStatus() != PullStatus.FOUND) {
                        break;
                    }
                    offset = result.getNextBeginOffset();
                    if (!add(whole(result.getMsgFoundList()))) {
                        return false;
                    }
                }
            }
            return true;
        });
    }

    private static void push(String namesrv, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            add(whole(messages));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private static int whole(List<MessageExt> messages) {
        int found = 0;
        for (MessageExt each : messages) {
            found += each.getBody().length == BODY.length ? 1 : 0;
        }
        return found;
    }

    interface Step {
        boolean run() throws Exception;
    }

    private static void inThread(Step step) {
        Thread thread = new Thread(() -> {
            try {
                while (step.run()) {
                }
            } catch (Throwable fault) {
                fail(fault);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static void fail(Throwable fault) {
        if (ENDED.getCount() > 0) {
            fault.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String mode = arguments[0], namesrv = arguments[1], topic = arguments[2], group = arguments[3];
        begin = System.nanoTime() + (long) (Double.parseDouble(arguments[5]) * 1e9);
        end = begin + (long) (Double.parseDouble(arguments[4]) * 1e9);
        switch (mode) {
            case "pull":
                pull(namesrv, topic, group);
                break;
            case "push":
                push(namesrv, topic, group);
                break;
            default:
                produce(mode, namesrv, topic, group);
        }
        ENDED.await();
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
