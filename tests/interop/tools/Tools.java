import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's command-line classes, one after the other in one machine: starting one for each would take longer than all of them.
 *
 * A line in: what the tool reads (base64), its class, its arguments, with tabs between. A line out: its exit code, what it wrote (base64).
 */
public class Tools {
    /** How the tool wanted to end, the first time that it said so: many catch what is thrown then, and end once more. */
    static Integer ended = null;

    static void end(int code) {
        if (ended == null) ended = code;
        throw new RuntimeException("ended");
    }

    public static void main(String[] words) throws Exception {
        PrintStream out = System.out;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> {
            if (message != null) System.err.println(message);
            end(code);
        });
        Exit.setHaltProcedure((code, message) -> end(code));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\t", -1);
            ByteArrayOutputStream written = new ByteArrayOutputStream();
            PrintStream both = new PrintStream(written, true, StandardCharsets.UTF_8);
            System.setIn(new ByteArrayInputStream(Base64.getDecoder().decode(parts[0])));
            System.setOut(both);
            System.setErr(both);
            int code = run(parts[1], Arrays.copyOfRange(parts, 2, parts.length));
            both.flush();
            out.println(code + "\t" + Base64.getEncoder().encodeToString(written.toByteArray()));
            out.flush();
        }
    }

    static int run(String tool, String[] arguments) {
        ended = null;
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (Throwable failed) {
            if (ended != null) return ended;
            failed.printStackTrace();
            return 1;
        }
        return ended == null ? 0 : ended;
    }
}
