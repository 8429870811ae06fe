import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A RocketMQ client that reads commands as lines and prints the results as JSON lines.
 *
 * Each line of standard input is one command: its name, then name=value words. The answer is any number of lines
 * {"event":...} closed by {"event":"done"} or {"event":"fault","error":...}. Every command takes namesrv=HOST:PORT,
 * and accessKey and secretKey to sign its requests.
 *
 * createTopic  topic broker=HOST:PORT [readQueues=4] [writeQueues=4] [perm=6] [order=false]
 * send         topic count [first=0] [mode=sync|async|oneway|batch|transaction] [group] [sizes=100,20] [keys=PREFIX] [tags=A,B]
 *              [property=NAME:VALUE]... [flag=0] [delay=LEVEL] [queue=ID] [batch=8] [outcomes=cru] [checks=u] [warmMs=0] [lingerMs=0] [retryMs=0]
 *              [paceMs=0] [until=FILE: not after it exists] [auto=true: sync only, the topic need not exist] [traced=true]
 * consume      topic group [expression=*] [type=TAG|SQL92] [mode=concurrently|orderly] [idleMs=1500] [max] [refuse=0]
 *              [maxTimes] [model=clustering|broadcasting] [traced=true] [pollMs: interval of route requests]
 *              [until=FILE: idleMs count from when it exists]
 * dump         topic [from=OFFSET] [via=TOPIC queues=0,1]   every message of every queue, from its minimum offset
 * offsets      topic [group]                                minimum, maximum, earliest store time (consumer offset)
 * search       topic time=MS                                offset of that time in every queue
 * query        topic key [max=32] [begin=0] [end]           messages with that key, by index
 * view         topic id                                     one message by offset id or unique key
 */
public final class Probe {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        JsonLine.event("ready").print();
        for (String line; (line = input.readLine()) != null; ) {
            List<String> words = Arrays.asList(line.trim().split(" "));
            try {
                run(words.get(0), new Options(words.subList(1, words.size())));
                JsonLine.event("done").print();
            } catch (Throwable fault) {
                fault.printStackTrace();
                JsonLine.event("fault").with("error", String.valueOf(fault)).print();
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(String command, Options options) throws Exception {
        switch (command) {
            case "createTopic":
                createTopic(options);
                break;
            case "send":
                Sending.send(options);
                break;
            case "consume":
                Reading.consume(options);
                break;
            case "dump":
                Reading.dump(options);
                break;
            case "offsets":
                Reading.offsets(options);
                break;
            case "search":
                Reading.search(options);
                break;
            case "query":
                Reading.query(options);
                break;
            case "view":
                Reading.view(options);
                break;
            default:
                throw new IllegalArgumentException("no such command: " + command);
        }
    }

    interface AdminWork {
        void run(DefaultMQAdminExt admin) throws Exception;
    }

    static void withAdmin(Options options, AdminWork work) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(hook(options), 20_000);
        admin.setInstanceName(freshName("admin"));
        admin.setNamesrvAddr(options.need("namesrv"));
        admin.start();
        try {
            work.run(admin);
        } finally {
            admin.shutdown();
        }
    }

    /** Returns whether the file of until=FILE exists. */
    static boolean isOver(Options options) {
        return options.has("until") && Files.exists(Paths.get(options.need("until")));
    }

    /** Returns a hook that signs with accessKey and secretKey, or null if they are not given. */
    static RPCHook hook(Options options) {
        if (!options.has("accessKey")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(options.need("accessKey"), options.need("secretKey")));
    }

    /** Returns an unused instance name: clients of one JVM with the same instance name share a connection. */
    static String freshName(String kind) {
        return kind + Long.toString(System.nanoTime(), 36);
    }

    private static void createTopic(Options options) throws Exception {
        TopicConfig topic = new TopicConfig(options.need("topic"));
        topic.setReadQueueNums(options.number("readQueues", 4));
        topic.setWriteQueueNums(options.number("writeQueues", 4));
        topic.setPerm(options.number("perm", 6));
        topic.setOrder(Boolean.parseBoolean(options.text("order", "false")));
        withAdmin(options, admin -> admin.createAndUpdateTopicConfig(options.need("broker"), topic));
        JsonLine.event("topic").with("topic", topic.getTopicName()).with("readQueues", topic.getReadQueueNums())
            .with("writeQueues", topic.getWriteQueueNums()).with("perm", topic.getPerm()).print();
    }
}
