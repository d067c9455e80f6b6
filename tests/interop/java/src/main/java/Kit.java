import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;

/**
 * What the checks stand on: the servers' words, waiting with a deadline, and the two ways of being run.
 * Named checks print PASS or FAIL; a single "-" reads names from stdin and prints one line of JSON for each.
 */
final class Kit {
    static final int SECONDS = 40;
    static final long START_MS = 1_700_000_000_123L;

    static Map<String, String> servers = new LinkedHashMap<>();

    private Kit() {}

    static String of(String name) {
        return Objects.requireNonNull(servers.get(name), name);
    }

    static final class Wrong extends RuntimeException {
        Wrong(String why) {
            super(why);
        }
    }

    static void equal(Object found, Object wanted, String what) {
        if (!Objects.deepEquals(found, wanted)) {
            throw new Wrong(what + ": found " + shown(found) + ", wanted " + shown(wanted));
        }
    }

    static void yes(boolean condition, String what) {
        if (!condition) {
            throw new Wrong(what);
        }
    }

    private static String shown(Object value) {
        String text = value instanceof Object[] array ? Arrays.deepToString(array) : String.valueOf(value);
        return text.length() > 2000 ? text.substring(0, 2000) : text;
    }

    static <T extends Throwable> T refused(Class<T> kind, Callable<?> work) throws Exception {
        Object answer;
        try {
            answer = work.call();
        } catch (Throwable raised) {
            for (Throwable each = raised; each != null; each = each.getCause()) {
                if (kind.isInstance(each)) {
                    return kind.cast(each);
                }
            }
            throw raised instanceof Exception error ? error : new ExecutionException(raised);
        }
        throw new Wrong("answered " + shown(answer) + " where " + kind.getSimpleName() + " was due");
    }

    /** The probe waits a little itself, or is cheap. */
    static void until(Callable<Boolean> probe, String what) throws Exception {
        long deadline = System.nanoTime() + SECONDS * 1_000_000_000L;
        while (System.nanoTime() < deadline) {
            if (probe.call()) {
                return;
            }
            Thread.sleep(20);
        }
        throw new Wrong("waited " + SECONDS + " s for " + what);
    }

    static String fresh(String prefix) {
        return prefix + "-" + java.util.UUID.randomUUID().toString().substring(0, 13);
    }

    private static Map<String, Method> checks() {
        Map<String, Method> found = new LinkedHashMap<>();
        for (Method method : Checks.class.getDeclaredMethods()) {
            if (method.getName().startsWith("check")) {
                found.put(snake(method.getName().substring("check".length())), method);
            }
        }
        return found;
    }

    private static String snake(String name) {
        return name.replaceAll("(?<!^)(?=[A-Z])", "_").toLowerCase();
    }

    /** The error, or nothing. */
    private static String judge(Method check) {
        try {
            check.invoke(null);
            return "";
        } catch (InvocationTargetException raised) {
            StringBuilder why = new StringBuilder();
            for (Throwable each = raised.getCause(); each != null; each = each.getCause()) {
                why.append(each).append('\n');
                for (StackTraceElement frame : each.getStackTrace()) {
                    if (frame.getClassName().startsWith("Checks")) {
                        why.append("    at ").append(frame).append('\n');
                    }
                }
            }
            return why.toString();
        } catch (IllegalAccessException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static String json(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            quoted.append(each < ' ' || each == '"' || each == '\\' || each > '~' ? String.format("\\u%04x", (int) each) : each);
        }
        return quoted.append('"').toString();
    }

    static void main(String[] words) throws Exception {
        List<String> wanted = new ArrayList<>();
        for (String word : words) {
            int at = word.indexOf('=');
            if (at < 0) {
                wanted.add(word);
            } else {
                servers.put(word.substring(0, at), word.substring(at + 1));
            }
        }
        Map<String, Method> checks = checks();
        if (wanted.equals(List.of("-"))) {
            var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String why = judge(Objects.requireNonNull(checks.get(line.strip()), line));
                System.out.println("{\"check\":" + json(line.strip()) + ",\"ok\":" + why.isEmpty() + ",\"why\":" + json(why) + "}");
            }
            Runtime.getRuntime().halt(0);
        }
        int failed = 0;
        for (String name : wanted.isEmpty() ? checks.keySet() : wanted) {
            long start = System.nanoTime();
            String why = judge(checks.get(name));
            failed += why.isEmpty() ? 0 : 1;
            System.out.printf("%s %5.1f s %s%n%s", why.isEmpty() ? "PASS" : "FAIL", (System.nanoTime() - start) / 1e9, name, why);
        }
        System.out.println(checks.size() - failed + " passed, " + failed + " failed");
        Runtime.getRuntime().halt(failed == 0 ? 0 : 1);
    }
}
