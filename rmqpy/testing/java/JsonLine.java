import java.io.PrintStream;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** One JSON object on one line of the real standard output, in ASCII so that it is independent of the locale. */
final class JsonLine {
    /** Kept from the start: commands may redirect System.out. */
    private static final PrintStream OUT = System.out;

    private final StringBuilder text = new StringBuilder("{");

    static JsonLine event(String name) {
        return new JsonLine().with("event", name);
    }

    JsonLine with(String key, Object value) {
        if (text.length() > 1) {
            text.append(',');
        }
        appendString(text, key);
        text.append(':');
        append(text, value);
        return this;
    }

    void print() {
        String line = text.append('}').toString();
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    private static void append(StringBuilder out, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof Map) {
            String separator = "{";
            Map<String, Object> sorted = new TreeMap<>();
            ((Map<?, ?>) value).forEach((k, v) -> sorted.put(String.valueOf(k), v));
            for (Map.Entry<String, Object> entry : sorted.entrySet()) {
                out.append(separator);
                separator = ",";
                appendString(out, entry.getKey());
                out.append(':');
                append(out, entry.getValue());
            }
            out.append(sorted.isEmpty() ? "{}" : "}");
        } else if (value instanceof List) {
            String separator = "[";
            for (Object item : (List<?>) value) {
                out.append(separator);
                separator = ",";
                append(out, item);
            }
            out.append(((List<?>) value).isEmpty() ? "[]" : "]");
        } else {
            appendString(out, value.toString());
        }
    }

    private static void appendString(StringBuilder out, String value) {
        out.append('"');
        for (char c : value.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
