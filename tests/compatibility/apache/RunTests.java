import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Set;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Reads names of test classes as lines, runs them, and prints one JSON line for each test that has ended. */
public final class RunTests {
    public static void main(String[] arguments) throws Exception {
        JsonLine.event("ready").print();
        System.setOut(System.err);  // The tests print, too.
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = input.readLine()) != null; ) {
            JUnitCore core = new JUnitCore();
            core.addListener(new Listener());
            core.run(Class.forName(line.trim()));
            JsonLine.event("done").print();
        }
        System.exit(0);
    }

    private static final class Listener extends RunListener {
        private final Set<Description> reported = new HashSet<>();
        private long began;

        @Override
        public void testStarted(Description test) {
            began = System.currentTimeMillis();
        }

        @Override
        public void testFailure(Failure failure) {
            report(failure.getDescription(), "failed", where(failure.getException()));
        }

        @Override
        public void testAssumptionFailure(Failure failure) {
            report(failure.getDescription(), "skipped", String.valueOf(failure.getMessage()));
        }

        @Override
        public void testIgnored(Description test) {
            report(test, "skipped", "@Ignore");
        }

        @Override
        public void testFinished(Description test) {
            report(test, "passed", null);
        }

        /** Prints the first report of a test: one that has failed also finishes. */
        private void report(Description test, String outcome, String error) {
            if (reported.add(test)) {
                JsonLine.event("test").with("class", test.getClassName())
                    .with("name", test.getMethodName() == null ? "*" : test.getMethodName()).with("outcome", outcome)
                    .with("ms", began == 0 ? 0 : System.currentTimeMillis() - began).with("error", error).print();
            }
        }

        /** Returns the text of a fault, and the place in the tests where it was raised. */
        private static String where(Throwable fault) {
            for (StackTraceElement place : fault.getStackTrace()) {
                if (place.getClassName().startsWith("org.apache.rocketmq.test")) {
                    return fault + " (" + place.getFileName() + ":" + place.getLineNumber() + ")";
                }
            }
            return String.valueOf(fault);
        }
    }
}
