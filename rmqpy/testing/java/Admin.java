import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Many mqadmin commands in one JVM.
 *
 * Each line of standard input is one command: percent-encoded words with spaces between them. Each answer is one line
 * {"event":"command","output":"what the command printed","finished":true}. A command that does not end within the
 * seconds given as the only argument is answered with finished=false and left behind in its daemon thread.
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
            run(words, limitMs);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(String[] words, long limitMs) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream capture = new PrintStream(printed, true, "UTF-8");
        System.setOut(capture);
        System.setErr(capture);
        forgetCommands();
        Thread worker = new Thread(() -> {
            try {
                MQAdminStartup.main0(words, null);
            } catch (Throwable fault) {
                fault.printStackTrace(capture);
            }
        });
        worker.setDaemon(true);
        worker.start();
        worker.join(limitMs);
        capture.flush();
        JsonLine.event("command").with("output", printed.toString("UTF-8")).with("finished", !worker.isAlive()).print();
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
}
