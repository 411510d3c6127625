import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;

/**
 * Prints flink-key-groups-v1.json with Flink's own classes (made with Flink 2.3.0):
 * `java -cp flink-dist-2.3.0.jar tests/golden/FlinkKeyGroupVectors.java > tests/golden/flink-key-groups-v1.json`.
 */
public class FlinkKeyGroupVectors {
    private static final int[] MAX_PARALLELISMS = {1, 2, 7, 128, 1000, 32768};
    private static final List<String> LINES = new ArrayList<>();

    public static void main(String[] arguments) {
        Random random = new Random(11);
        String[] strings = {"", "a", "N14228", "\0", "\ud83d\udeeb", "na\u00efve \u65e5\u672c\u8a9e", "polygenelubricants"};
        for (String each : strings) key("string", quoted(each), each, random);
        for (int i = 0; i < 200; i++) {
            StringBuilder text = new StringBuilder();
            int length = random.nextInt(24);
            for (int j = 0; j < length; j++) {
                int point;
                do point = random.nextInt(0x110000) >> random.nextInt(14); while (point >= 0xD800 && point < 0xE000);
                text.appendCodePoint(point);
            }
            key("string", quoted(text.toString()), text.toString(), random);
        }
        for (int each : new int[] {0, 1, -1, 42, Integer.MAX_VALUE, Integer.MIN_VALUE}) key("int32", "" + each, each, random);
        for (int i = 0; i < 100; i++) { int each = random.nextInt(); key("int32", "" + each, each, random); }
        for (long each : new long[] {0, 1, -1, 1L << 32, Long.MAX_VALUE, Long.MIN_VALUE}) key("int64", "" + each, each, random);
        for (int i = 0; i < 100; i++) { long each = random.nextLong(); key("int64", "" + each, each, random); }
        for (boolean each : new boolean[] {true, false}) key("bool", "" + each, each, random);
        double[] doubles = {0.0, -0.0, 1.0, -1.5, 1e300, Double.MIN_VALUE, Double.MAX_VALUE, Double.NaN,
            Double.POSITIVE_INFINITY, Double.NEGATIVE_INFINITY};
        for (double each : doubles) key("double", bits(each), each, random);
        for (int i = 0; i < 100; i++) { double each = random.nextGaussian() * 1e6; key("double", bits(each), each, random); }
        for (int maxParallelism : MAX_PARALLELISMS)
            for (int i = 0; i < 40; i++) {
                int parallelism = 1 + random.nextInt(maxParallelism), index = random.nextInt(parallelism);
                KeyGroupRange range = KeyGroupRangeAssignment.computeKeyGroupRangeForOperatorIndex(maxParallelism, parallelism, index);
                int keyGroup = random.nextInt(maxParallelism);
                int owner = KeyGroupRangeAssignment.computeOperatorIndexForKeyGroup(maxParallelism, parallelism, keyGroup);
                LINES.add(String.format("{\"range\": [%d, %d, %d, %d, %d], \"owner\": [%d, %d]}",
                    maxParallelism, parallelism, index, range.getStartKeyGroup(), range.getEndKeyGroup(), keyGroup, owner));
            }
        for (int each : new int[] {1, 2, 3, 84, 85, 86, 100, 128, 170, 171, 1000, 10000, 20000, 21845, 21846, 32767, 32768})
            LINES.add(String.format("{\"default_max_parallelism\": [%d, %d]}", each,
                KeyGroupRangeAssignment.computeDefaultMaxParallelism(each)));
        byte[] page = ("[\n" + String.join(",\n", LINES) + "\n]\n").getBytes(StandardCharsets.US_ASCII);
        System.out.write(page, 0, page.length);
        System.out.flush();
    }

    private static void key(String type, String json, Object key, Random random) {
        int maxParallelism = MAX_PARALLELISMS[random.nextInt(MAX_PARALLELISMS.length)];
        LINES.add(String.format("{\"type\": \"%s\", \"key\": %s, \"max_parallelism\": %d, \"key_group\": %d}",
            type, json, maxParallelism, KeyGroupRangeAssignment.assignToKeyGroup(key, maxParallelism)));
    }

    private static String bits(double value) {
        return "\"" + Long.toHexString(Double.doubleToRawLongBits(value)) + "\"";
    }

    private static String quoted(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (char unit : text.toCharArray()) json.append(String.format("\\u%04x", (int) unit));
        return json.append('"').toString();
    }
}
