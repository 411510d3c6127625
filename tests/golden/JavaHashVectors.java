import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

/** Prints java-hash-v1.json: `java tests/golden/JavaHashVectors.java > tests/golden/java-hash-v1.json`. */
public class JavaHashVectors {
    private static final List<String> LINES = new ArrayList<>();

    public static void main(String[] arguments) {
        Random random = new Random(7);
        String[] strings = {
            "", "a", "abc", "hello", "Polynomial overflow: " + "z".repeat(200), "\0", "\0a", "na\u00efve", "\u65e5\u672c\u8a9e",
            "\ud83d\ude00", "x\ud83d\ude00y\udbff\udfff", "\uffff", "polygenelubricants", "123e4567-e89b-12d3-a456-426614174000"
        };
        for (String each : strings) add("string", quoted(each), each.hashCode());
        for (int i = 0; i < 60; i++) {
            StringBuilder text = new StringBuilder();
            int length = random.nextInt(20);
            for (int j = 0; j < length; j++) {
                int point;
                do point = random.nextInt(0x110000) >> random.nextInt(14); while (point >= 0xD800 && point < 0xE000);
                text.appendCodePoint(point);
            }
            add("string", quoted(text.toString()), text.toString().hashCode());
        }
        long[] longs = {0, 1, -1, 42, Integer.MAX_VALUE, Integer.MIN_VALUE, 1L << 32, Long.MAX_VALUE, Long.MIN_VALUE};
        for (long each : longs) add("int64", "" + each, Long.hashCode(each));
        for (int i = 0; i < 30; i++) { long each = random.nextLong(); add("int64", "" + each, Long.hashCode(each)); }
        int[] ints = {0, 1, -1, 42, Integer.MAX_VALUE, Integer.MIN_VALUE};
        for (int each : ints) add("int32", "" + each, Integer.hashCode(each));
        for (short each : new short[] {0, -1, Short.MAX_VALUE, Short.MIN_VALUE}) add("int16", "" + each, Short.hashCode(each));
        for (byte each : new byte[] {0, -1, 127, -128}) add("int8", "" + each, Byte.hashCode(each));
        for (boolean each : new boolean[] {true, false}) add("bool", "" + each, Boolean.hashCode(each));
        double[] doubles = {0.0, -0.0, 1.0, -1.5, 1e300, Double.MIN_VALUE, Double.MAX_VALUE, Double.NaN,
            Double.longBitsToDouble(0xfff8000000000001L), Double.POSITIVE_INFINITY, Double.NEGATIVE_INFINITY, Math.PI};
        for (double each : doubles)
            add("double", "\"" + Long.toHexString(Double.doubleToRawLongBits(each)) + "\"", Double.hashCode(each));
        float[] floats = {0.0f, -0.0f, 1.0f, -1.5f, Float.MIN_VALUE, Float.MAX_VALUE, Float.NaN, Float.POSITIVE_INFINITY};
        for (float each : floats)
            add("float", "\"" + Integer.toHexString(Float.floatToRawIntBits(each)) + "\"", Float.hashCode(each));
        String[] decimals = {"0.00", "1.23", "-1.23", "99999999999999.99", "-12345678901234567890123456.78", "4294967296.00"};
        for (String each : decimals) add("decimal(38,2)", quoted(each), new BigDecimal(each).hashCode());
        String[] dates = {"1970-01-01", "1969-12-31", "2024-02-29", "0001-01-01", "9999-12-31"};
        for (String each : dates) add("date", quoted(each), LocalDate.parse(each).hashCode());
        String[] instants = {"1970-01-01T00:00:00Z", "1969-12-31T23:59:59.999999Z", "2024-02-29T12:34:56.789012Z"};
        for (String each : instants) add("timestamp", quoted(each), Instant.parse(each).hashCode());
        for (String each : new String[] {"", "00", "ff80017f", "0102030405"}) {
            byte[] bytes = new byte[each.length() / 2];
            for (int i = 0; i < bytes.length; i++) bytes[i] = (byte) Integer.parseInt(each.substring(2 * i, 2 * i + 2), 16);
            add("binary", quoted(each), Arrays.hashCode(bytes));
        }
        for (int each : new int[] {0, 1, -1, 42, 97, 1485273170, Integer.MAX_VALUE, Integer.MIN_VALUE}) add("murmur", "" + each, murmur(each));
        for (int i = 0; i < 60; i++) { int each = random.nextInt(); add("murmur", "" + each, murmur(each)); }
        byte[] page = ("[\n" + String.join(",\n", LINES) + "\n]\n").getBytes(StandardCharsets.US_ASCII);
        System.out.write(page, 0, page.length);
        System.out.flush();
    }

    /** The arithmetic of Flink's MathUtils.murmurHash. */
    private static int murmur(int code) {
        code *= 0xcc9e2d51;
        code = Integer.rotateLeft(code, 15);
        code *= 0x1b873593;
        code = Integer.rotateLeft(code, 13);
        code = code * 5 + 0xe6546b64;
        code ^= 4;
        code ^= code >>> 16;
        code *= 0x85ebca6b;
        code ^= code >>> 13;
        code *= 0xc2b2ae35;
        code ^= code >>> 16;
        return code >= 0 ? code : code != Integer.MIN_VALUE ? -code : 0;
    }

    private static void add(String type, String value, int hash) {
        LINES.add("{\"type\": \"" + type + "\", \"value\": " + value + ", \"hash\": " + hash + "}");
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char unit : text.toCharArray()) {
            if (unit < 0x20 || unit > 0x7e || unit == '"' || unit == '\\') out.append(String.format("\\u%04x", (int) unit));
            else out.append(unit);
        }
        return out.append('"').toString();
    }
}
