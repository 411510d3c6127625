import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.formats.avro.typeutils.GenericRecordAvroTypeInfo;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.source.SourceFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.util.Collector;

/**
 * Takes the savepoint flink-savepoints-v1/avro-1, of values of Avro and of windows (made with Flink 1.20.1 and flink-avro
 * 1.20.1, with avro 1.11.4 and Jackson). Run it as FlinkSavepoints.java, with these jars.
 */
public class FlinkAvroSavepoint {
    static final int ORDERS = 12;
    static final AtomicInteger SEEN = new AtomicInteger();
    static final String SCHEMA =
        "{\"type\":\"record\",\"name\":\"Order\",\"namespace\":\"shop\",\"fields\":["
            + "{\"name\":\"id\",\"type\":\"long\"},{\"name\":\"count\",\"type\":\"int\"},"
            + "{\"name\":\"customer\",\"type\":\"string\"},{\"name\":\"amount\",\"type\":\"double\"},"
            + "{\"name\":\"note\",\"type\":[\"null\",\"string\"]},"
            + "{\"name\":\"tags\",\"type\":{\"type\":\"array\",\"items\":\"string\"}},"
            + "{\"name\":\"parts\",\"type\":{\"type\":\"map\",\"values\":\"long\"}},"
            + "{\"name\":\"paid\",\"type\":\"boolean\"},"
            + "{\"name\":\"status\",\"type\":{\"type\":\"enum\",\"name\":\"Status\",\"symbols\":[\"NEW\",\"SENT\"]}}]}";

    static class Orders implements SourceFunction<Long> {
        private volatile boolean running = true;

        @Override
        public void run(SourceContext<Long> context) throws Exception {
            for (long id = 0; id < ORDERS; id++) {
                context.collect(id);
            }
            while (running) {
                Thread.sleep(50);
            }
        }

        @Override
        public void cancel() {
            running = false;
        }
    }

    static class Totals extends KeyedProcessFunction<Long, Long, Long> {
        transient ValueState<GenericRecord> last;

        @Override
        public void open(Configuration parameters) {
            Schema schema = new Schema.Parser().parse(SCHEMA);
            last = getRuntimeContext().getState(
                new ValueStateDescriptor<>("last", new GenericRecordAvroTypeInfo(schema)));
        }

        @Override
        public void processElement(Long id, Context context, Collector<Long> out) throws Exception {
            Schema schema = new Schema.Parser().parse(SCHEMA);
            GenericRecord order = new GenericData.Record(schema);
            order.put("id", id);
            order.put("count", (int) (long) -id);
            order.put("customer", "c\u00e9" + id);
            order.put("amount", id * 1.5);
            order.put("note", id % 2 == 0 ? null : "note " + id);
            List<String> tags = new ArrayList<>();
            Map<String, Long> parts = new HashMap<>();
            for (long each = 0; each < id % 3; each++) {
                tags.add("tag" + each);
                parts.put("part" + each, id * each);
            }
            order.put("tags", tags);
            order.put("parts", parts);
            order.put("paid", id % 2 == 0);
            order.put("status", new GenericData.EnumSymbol(schema.getField("status").schema(), id % 2 == 0 ? "NEW" : "SENT"));
            last.update(order);
            out.collect(id);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("rest.bind-address", "127.0.0.1");
        settings.setString("rest.address", "127.0.0.1");
        settings.setString("rest.bind-port", "0");
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        env.setParallelism(1);
        env.setMaxParallelism(8);
        DataStream<Long> orders = env.addSource(new Orders(), "orders", Types.LONG).uid("orders")
            .keyBy(id -> id % 5, Types.LONG)
            .process(new Totals(), Types.LONG).uid("totals");
        orders.assignTimestampsAndWatermarks(
                WatermarkStrategy.<Long>forMonotonousTimestamps().withTimestampAssigner((id, at) -> 100 * id)).uid("times")
            .keyBy(id -> id % 2, Types.LONG)
            .window(TumblingEventTimeWindows.of(java.time.Duration.ofMillis(1000)))
            .reduce((left, right) -> { SEEN.incrementAndGet(); return left + right; }).uid("windows")
            .sinkTo(new DiscardingSink<>()).uid("nothing");
        JobClient job = env.executeAsync("avro-1");
        Thread.sleep(3000);
        System.out.println(job.stopWithSavepoint(
            false, "file://" + arguments[0] + "/avro-1", SavepointFormatType.CANONICAL).get());
        System.exit(0);
    }
}
