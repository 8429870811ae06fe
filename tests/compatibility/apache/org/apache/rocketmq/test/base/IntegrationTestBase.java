package org.apache.rocketmq.test.base;

import java.io.File;
import java.io.IOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.common.protocol.route.BrokerData;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdmin;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Leads Apache's integration tests to servers that run already. It takes the place of Apache's class of this name,
 * which starts servers in the JVM of the tests: the controllers that it returns are never started, and only carry ports
 * and names.
 *
 * judge.namesrv  port of the name server
 * judge.brokers  names of the brokers of the cluster, with commas between them
 * judge.broker   the words of a command that starts a further broker, one a line; {conf} is its configuration file
 * judge.folder   where the files of further brokers are
 */
public class IntegrationTestBase {
    private static final long TOPIC_MS_MAX = 30_000;
    private static final long START_MS_MAX = 60_000;
    private static final int LOWEST_PORT = 10_240;
    private static final int PORTS = 20_000;
    private static final int PORTS_OF_A_BROKER = 4;
    private static final Random RANDOM = new Random();
    private static final List<Process> STARTED = new ArrayList<>();
    private static final List<String> NAMES =
        new ArrayList<>(Arrays.asList(System.getProperty("judge.brokers").split(",")));

    static {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> STARTED.forEach(Process::destroyForcibly)));
    }

    /** Returns a port whose next ports are free, too: a broker on port P also listens on P - 2 and P + 1. */
    public static synchronized int nextPort() {
        for (int tries = 0; tries < 500; tries++) {
            int first = LOWEST_PORT + RANDOM.nextInt(PORTS);
            boolean free = true;
            for (int port = first; port < first + PORTS_OF_A_BROKER && free; port++) {
                try (ServerSocket socket = new ServerSocket()) {
                    socket.bind(new InetSocketAddress("127.0.0.1", port));
                } catch (IOException taken) {
                    free = false;
                }
            }
            if (free) {
                return first + 2;
            }
        }
        throw new IllegalStateException("no free ports");
    }

    public static String createBaseDir() {
        return System.getProperty("judge.folder") + File.separator + UUID.randomUUID();
    }

    public static NamesrvController createAndStartNamesrv() {
        NettyServerConfig config = new NettyServerConfig();
        config.setListenPort(Integer.getInteger("judge.namesrv"));
        return new NamesrvController(new NamesrvConfig(), config);
    }

    /** Returns the next broker of the cluster. */
    public static synchronized BrokerController createAndStartBroker(String namesrv) {
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerName(NAMES.remove(0));
        broker.setNamesrvAddr(namesrv);
        MessageStoreConfig store = new MessageStoreConfig();
        store.setStorePathRootDir(createBaseDir());
        return new BrokerController(broker, new NettyServerConfig(), new NettyClientConfig(), store);
    }

    /** Starts a broker in a process of its own, and waits until it is a master that the name server knows. */
    public static BrokerController createAndStartBroker(MessageStoreConfig store, BrokerConfig broker) {
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(nextPort());
        DefaultMQAdminExt admin = new DefaultMQAdminExt(5000);
        admin.setInstanceName(UUID.randomUUID().toString());
        admin.setNamesrvAddr(broker.getNamesrvAddr());
        Process process;
        try {
            admin.start();
            process = start(properties(store, broker, server.getListenPort()), store.getStorePathRootDir());
            waitUntilMaster(admin, broker, process);
        } catch (Exception fault) {
            throw new IllegalStateException(fault);
        }
        store.setBrokerRole(BrokerRole.SYNC_MASTER);
        return new BrokerController(broker, server, new NettyClientConfig(), store) {
            @Override
            public MessageStore getMessageStore() {
                return offsetsOf(admin, broker.getBrokerName());
            }

            @Override
            public void shutdown() {
                admin.shutdown();
                process.destroy();
                try {
                    process.waitFor(10, TimeUnit.SECONDS);
                } catch (InterruptedException interrupted) {
                    Thread.currentThread().interrupt();
                }
            }
        };
    }

    public static boolean initTopic(String topic, String namesrv, String cluster, int queues) {
        long giveUp = System.currentTimeMillis() + TOPIC_MS_MAX;
        while (!MQAdmin.createTopic(namesrv, cluster, topic, queues)) {
            if (System.currentTimeMillis() > giveUp) {
                throw new AssertionError("the topic " + topic + " was not created");
            }
        }
        return true;
    }

    public static boolean initTopic(String topic, String namesrv, String cluster) {
        return initTopic(topic, namesrv, cluster, 8);
    }

    private static Map<String, String> properties(MessageStoreConfig store, BrokerConfig broker, int port) {
        Map<String, String> lines = new TreeMap<>();
        lines.put("brokerClusterName", broker.getBrokerClusterName());
        lines.put("brokerName", broker.getBrokerName());
        lines.put("brokerIP1", "127.0.0.1");
        lines.put("brokerIP2", "127.0.0.1");
        lines.put("listenPort", String.valueOf(port));
        lines.put("namesrvAddr", broker.getNamesrvAddr());
        lines.put("storePathRootDir", store.getStorePathRootDir());
        lines.put("storePathCommitLog", store.getStorePathCommitLog());
        lines.put("mappedFileSizeCommitLog", String.valueOf(store.getMappedFileSizeCommitLog()));
        lines.put("enableDLegerCommitLog", String.valueOf(store.isEnableDLegerCommitLog()));
        lines.put("dLegerGroup", store.getdLegerGroup());
        lines.put("dLegerPeers", store.getdLegerPeers());
        lines.put("dLegerSelfId", store.getdLegerSelfId());
        return lines;
    }

    private static Process start(Map<String, String> properties, String folder) throws IOException {
        Path conf = Paths.get(folder + ".conf");
        List<String> lines = new ArrayList<>();
        properties.forEach((key, value) -> lines.add(key + "=" + value));
        Files.write(conf, lines);
        List<String> words = new ArrayList<>(Arrays.asList(System.getProperty("judge.broker").split("\n")));
        words.replaceAll(word -> word.replace("{conf}", conf.toString()));
        Process process = new ProcessBuilder(words).redirectErrorStream(true)
            .redirectOutput(new File(folder + ".log")).start();
        STARTED.add(process);
        return process;
    }

    private static void waitUntilMaster(DefaultMQAdminExt admin, BrokerConfig broker, Process process) throws Exception {
        long giveUp = System.currentTimeMillis() + START_MS_MAX;
        while (true) {
            BrokerData known = admin.examineBrokerClusterInfo().getBrokerAddrTable().get(broker.getBrokerName());
            String address = known == null ? null : known.getBrokerAddrs().get(MixAll.MASTER_ID);
            if (address != null && accepts(address)) {
                return;
            }
            if (!process.isAlive() || System.currentTimeMillis() > giveUp) {
                throw new IllegalStateException("the broker " + broker.getBrokerName() + " did not become a master");
            }
            Thread.sleep(100);
        }
    }

    private static boolean accepts(String address) {
        String[] parts = address.split(":");
        try (Socket socket = new Socket(parts[0], Integer.parseInt(parts[1]))) {
            return true;
        } catch (IOException refused) {
            return false;
        }
    }

    /** Returns the two methods of a store that a test calls, answered by the broker. */
    private static MessageStore offsetsOf(DefaultMQAdminExt admin, String brokerName) {
        InvocationHandler handler = (proxy, method, arguments) -> {
            if (!method.getName().endsWith("OffsetInQueue")) {
                throw new UnsupportedOperationException(method.getName());
            }
            MessageQueue queue = new MessageQueue((String) arguments[0], brokerName, (Integer) arguments[1]);
            return method.getName().startsWith("getMin") ? admin.minOffset(queue) : admin.maxOffset(queue);
        };
        return (MessageStore) Proxy.newProxyInstance(
            MessageStore.class.getClassLoader(), new Class<?>[] {MessageStore.class}, handler);
    }
}
