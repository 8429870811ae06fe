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
 * Runs many mqadmin commands in one JVM.
 *
 * Each line of standard input is one command: percent-encoded words with spaces between them. Each answer is one line
 * {"event":"command","output":"the printed text","codes":["17=0"],"finished":true}: codes has the request codes that the
 * command sent, each with its response code. If a command does not end within the seconds given as the only argument, or
 * as a first word @SECONDS, the answer has finished=false and the command continues in its daemon thread.
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

    /** Does the same as MQAdminStartup.main0, but passes the hook to the command, which main0 does not. */
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

    /** Some commands are written for one command per JVM: they keep their first client and its name server. */
    private static void forgetCommands() throws Exception {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    /** Records the request codes that a command sends, and the codes of the responses. */
    private static final class Codes implements RPCHook {
        private final Set<String> seen = new TreeSet<>();
        /** Signs requests if conf/tools.yml has an account, because this hook replaces Java's own. */
        private final RPCHook account = account(System.getProperty("rocketmq.home.dir") + "/conf/tools.yml");

        /** Java's own search for the file prints an error into the command's output if it is missing. */
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
