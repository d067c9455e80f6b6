// Lines of `reader TAB writer` in, lines of Apache Avro's verdicts out: the kinds of what does not fit, with commas between.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.stream.Collectors;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;

public class AvroJudge {
    public static void main(String[] words) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] pair = line.split("\t");
            Schema reader = new Schema.Parser().parse(pair[0]);
            Schema writer = new Schema.Parser().parse(pair[1]);
            var result = SchemaCompatibility.checkReaderWriterCompatibility(reader, writer).getResult();
            System.out.println(result.getIncompatibilities().stream()
                .map(each -> each.getType().toString()).distinct().sorted().collect(Collectors.joining(",")));
        }
    }
}
