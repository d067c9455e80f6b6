// Lines of `new TAB old` in, Apicurio Registry's verdicts out: what of the new schema breaks with the old one.
import io.apicurio.registry.rules.compatibility.protobuf.ProtobufCompatibilityCheckerLibrary;
import io.apicurio.registry.utils.protobuf.schema.ProtobufFile;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.stream.Collectors;

public class ProtoJudge {
    public static void main(String[] words) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] pair = line.split("\t");
            var library = new ProtobufCompatibilityCheckerLibrary(new ProtobufFile(pair[1]), new ProtobufFile(pair[0]));
            System.out.println(library.findDifferences().stream()
                .map(each -> each.getMessage()).collect(Collectors.joining(" | ")));
        }
    }
}
