import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.PosixParser;
import org.apache.rocketmq.acl.common.AclUtils;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Many mqadmin commands in one JVM.
 *
 * Each line of standard input is one command: percent-encoded words with spaces between them. Each answer is one line
 * {"event":"command","output":"what the command printed","codes":["17=0"],"finished":true}: codes are the requests that
 * it sent and how they were answered. A command that does not end within the seconds given as the only argument, or as
 * a first word @SECONDS, is answered with finished=false and left behind in its daemon thread.
 */
public final class Admin {
    public static void main(String[] arguments) throws Exception {
        long limitMs = 1000L * Integer.parseInt(arguments[0]);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        JsonLine.event("ready").print();
        for (String line; (line = input.readLine()) != null; ) {
            String[] words = line.trim().split(" ");
            for (int i = 0; i < words.length; i++) {
                words[i] = URLDecoder.decode(words[i], "UTF-8");
            }
            boolean own = words[0].startsWith("@");
            run(own ? Arrays.copyOfRange(words, 1, words.length) : words,
                own ? 1000L * Integer.parseInt(words[0].substring(1)) : limitMs);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(String[] words, long limitMs) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream capture = new PrintStream(printed, true, "UTF-8");
        System.setOut(capture);
        System.setErr(capture);
        forgetCommands();
        Codes codes = new Codes();
        Thread worker = new Thread(() -> {
            try {
                execute(words, codes);
            } catch (Throwable fault) {
                fault.printStackTrace(capture);
            }
        });
        worker.setDaemon(true);
        worker.start();
        worker.join(limitMs);
        capture.flush();
        JsonLine.event("command").with("output", printed.toString("UTF-8")).with("codes", codes.seen())
            .with("finished", !worker.isAlive()).print();
    }

    /** What MQAdminStartup.main0 does, with a hook: that one takes the hook it is given for none. */
    private static void execute(String[] words, RPCHook hook) throws Exception {
        MQAdminStartup.initCommand();
        Method find = MQAdminStartup.class.getDeclaredMethod("findSubCommand", String.class);
        find.setAccessible(true);
        SubCommand command = (SubCommand) find.invoke(null, words[0]);
        if (command == null) {
            MQAdminStartup.main0(words, null);
            return;
        }
        org.apache.commons.cli.Options options = command.buildCommandlineOptions(
            ServerUtil.buildCommandlineOptions(new org.apache.commons.cli.Options()));
        String[] rest = Arrays.copyOfRange(words, 1, words.length);
        CommandLine line = ServerUtil.parseCmdLine("mqadmin " + words[0], rest, options, new PosixParser());
        if (line != null) {
            if (line.hasOption('n')) {
                System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, line.getOptionValue('n'));
            }
            command.execute(line, options, hook);
        }
    }

    /** Made for one command a JVM, some commands keep their first client and with it its name server. */
    private static void forgetCommands() throws Exception {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    /** Which requests a command sends, and the codes of the answers. */
    private static final class Codes implements RPCHook {
        private final Set<String> seen = new TreeSet<>();
        /** What signs, where conf/tools.yml has an account: a hook of ours takes the place of it. */
        private final RPCHook account = account(System.getProperty("rocketmq.home.dir") + "/conf/tools.yml");

        /** Java's own search complains of a file that is not there, into what the command prints. */
        private static RPCHook account(String path) {
            return new File(path).exists() ? AclUtils.getAclRPCHook(path) : null;
        }

        @Override
        public void doBeforeRequest(String address, RemotingCommand request) {
            if (account != null) {
                account.doBeforeRequest(address, request);
            }
        }

        @Override
        public synchronized void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
            if (response != null) {
                seen.add(request.getCode() + "=" + response.getCode());
            }
        }

        synchronized List<String> seen() {
            return new ArrayList<>(seen);
        }
    }
}
