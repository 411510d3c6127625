import java.time.Duration;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.state.*;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.source.SourceFunction;
import org.apache.flink.util.Collector;

/**
 * Takes the savepoints of flink-savepoints-v1 with Flink itself (made with Flink 1.20.1): of one job with the heap and
 * with RocksDB, at two parallelisms. After `javac -cp flink-dist-1.20.1.jar FlinkSavepoints.java`, run
 * `java -cp "flink-dist-1.20.1.jar:log4j/*:." FlinkSavepoints DIRECTORY`, and move the files of each savepoint.
 * `rocksdb-2-of-2.3` is of Flink 2.3.0, where SourceFunction is in `functions.source.legacy`, and open takes an
 * OpenContext.
 * Java 17 needs `--add-opens=java.base/java.lang=ALL-UNNAMED`, and the same of java.util, java.net, java.lang.invoke.
 */
public class FlinkSavepoints {
    static final int ORDERS = 40;
    static final AtomicInteger SEEN = new AtomicInteger();

    /** An order: a POJO. */
    public static class Order {
        public long id;
        public String customer;
        public double amount;
        public Integer discount;

        public Order() {}

        Order(long id) {
            this.id = id;
            customer = "c" + id % 10;
            amount = id * 1.5;
            discount = id % 2 == 0 ? null : (int) id;
        }
    }

    /** Emits the orders, then waits. */
    public static class Orders implements SourceFunction<Order> {
        private volatile boolean running = true;

        @Override
        public void run(SourceContext<Order> context) throws Exception {
            for (long id = 0; id < ORDERS; id++) {
                context.collect(new Order(id));
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

    /** Keeps a state of each kind per customer. */
    public static class Totals extends KeyedProcessFunction<String, Order, String> {
        transient ValueState<Long> count;
        transient ValueState<Order> last;
        transient ListState<String> labels;
        transient MapState<String, Double> amounts;
        transient ValueState<Tuple2<String, Long>> pair;
        transient ValueState<Long> recent;
        transient ListState<Integer> recentList;
        transient MapState<String, Long> recentMap;
        transient ValueState<UUID> generic;

        @Override
        public void open(Configuration parameters) {
            StateTtlConfig ttl = StateTtlConfig.newBuilder(Duration.ofDays(36500)).build();
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
            last = getRuntimeContext().getState(new ValueStateDescriptor<>("last", Order.class));
            labels = getRuntimeContext().getListState(new ListStateDescriptor<>("labels", Types.STRING));
            amounts = getRuntimeContext().getMapState(
                new MapStateDescriptor<>("amounts", Types.STRING, Types.DOUBLE));
            pair = getRuntimeContext().getState(
                new ValueStateDescriptor<>("pair", Types.TUPLE(Types.STRING, Types.LONG)));
            ValueStateDescriptor<Long> of = new ValueStateDescriptor<>("recent", Types.LONG);
            of.enableTimeToLive(ttl);
            recent = getRuntimeContext().getState(of);
            ListStateDescriptor<Integer> ofList = new ListStateDescriptor<>("recent_list", Types.INT);
            ofList.enableTimeToLive(ttl);
            recentList = getRuntimeContext().getListState(ofList);
            MapStateDescriptor<String, Long> ofMap = new MapStateDescriptor<>("recent_map", Types.STRING, Types.LONG);
            ofMap.enableTimeToLive(ttl);
            recentMap = getRuntimeContext().getMapState(ofMap);
            generic = getRuntimeContext().getState(new ValueStateDescriptor<>("generic", UUID.class));
        }

        @Override
        public void processElement(Order order, Context context, Collector<String> out) throws Exception {
            long seen = count.value() == null ? 1 : count.value() + 1;
            count.update(seen);
            last.update(order);
            labels.add("order, " + order.id + " é");
            amounts.put("m" + order.id % 4, order.amount);
            pair.update(Tuple2.of(order.customer, order.id));
            recent.update(order.id);
            recentList.add((int) order.id);
            recentMap.put("r" + order.id % 4, order.id);
            generic.update(new UUID(order.id, order.id));
            context.timerService().registerEventTimeTimer(1_000_000L + order.id);
            context.timerService().registerProcessingTimeTimer(4_000_000_000_000L + order.id);
            SEEN.incrementAndGet();
        }
    }

    public static void main(String[] arguments) throws Exception {
        take("heap-1", "hashmap", 1, false, arguments[0]);
        take("rocksdb-2", "rocksdb", 2, true, arguments[0]);
        System.exit(0);
    }

    static void take(String name, String backend, int parallelism, boolean compressed, String to) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("state.backend.type", backend);
        settings.setString("execution.checkpointing.snapshot-compression", String.valueOf(compressed));
        settings.setString("execution.checkpointing.data-inline-threshold", compressed ? "0b" : "20kb");
        if (compressed) {
            settings.setString("execution.checkpointing.storage", "filesystem");
            settings.setString("execution.checkpointing.dir", "file://" + to + "/checkpoints");
        }
        settings.setString("rest.bind-address", "127.0.0.1");
        settings.setString("rest.address", "127.0.0.1");
        settings.setString("rest.bind-port", "0");
        settings.setString("taskmanager.numberOfTaskSlots", "2");
        SEEN.set(0);
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        env.setParallelism(parallelism);
        env.setMaxParallelism(8);
        env.addSource(new Orders(), "orders", TypeInformation.of(Order.class)).setParallelism(1).uid("orders")
            .keyBy(order -> order.customer, Types.STRING)
            .process(new Totals(), Types.STRING).uid("totals")
            .sinkTo(new DiscardingSink<>()).uid("nothing");
        JobClient job = env.executeAsync(name);
        while (SEEN.get() < ORDERS) {
            Thread.sleep(50);
        }
        String location =
            job.stopWithSavepoint(false, "file://" + to + "/" + name, SavepointFormatType.CANONICAL).get();
        System.out.println(name + " " + location);
    }
}
