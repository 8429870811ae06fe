import java.net.URLDecoder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The name=value words of one probe command; names and values are percent-encoded, and names may be repeated. */
final class Options {
    private final Map<String, List<String>> values = new HashMap<>();

    Options(List<String> words) throws Exception {
        for (String word : words) {
            int equals = word.indexOf('=');
            if (equals < 1) {
                throw new IllegalArgumentException("not name=value: " + word);
            }
            values.computeIfAbsent(word.substring(0, equals), k -> new ArrayList<>())
                .add(URLDecoder.decode(word.substring(equals + 1), "UTF-8"));
        }
    }

    boolean has(String name) {
        return values.containsKey(name);
    }

    List<String> all(String name) {
        return values.getOrDefault(name, Collections.emptyList());
    }

    String text(String name, String otherwise) {
        List<String> found = values.get(name);
        return found == null ? otherwise : found.get(found.size() - 1);
    }

    String need(String name) {
        String value = text(name, null);
        if (value == null) {
            throw new IllegalArgumentException("option " + name + " is missing");
        }
        return value;
    }

    int number(String name, int otherwise) {
        return has(name) ? Integer.parseInt(need(name)) : otherwise;
    }

    long longNumber(String name, long otherwise) {
        return has(name) ? Long.parseLong(need(name)) : otherwise;
    }

    List<String> list(String name, String otherwise) {
        String value = text(name, otherwise);
        return value.isEmpty() ? Collections.emptyList() : Arrays.asList(value.split(","));
    }
}
