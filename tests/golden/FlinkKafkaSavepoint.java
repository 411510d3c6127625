import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.*;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.kafka.source.split.KafkaPartitionSplit;
import org.apache.flink.connector.kafka.source.split.KafkaPartitionSplitSerializer;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.kafka.common.TopicPartition;

/**
 * Takes the savepoint flink-savepoints-v1/kafka-2 with the splits and the serializer of Flink's Kafka source, but without
 * a broker (made with Flink 1.20.1 and flink-connector-kafka 3.4.0-1.20). Run it as FlinkSavepoints.java, with both jars.
 */
public class FlinkKafkaSavepoint {
    static final AtomicInteger ASSIGNED = new AtomicInteger();

    static class Reader implements SourceReader<Long, KafkaPartitionSplit> {
        private final List<KafkaPartitionSplit> splits = new ArrayList<>();

        @Override
        public void start() {}

        @Override
        public InputStatus pollNext(ReaderOutput<Long> output) {
            return InputStatus.NOTHING_AVAILABLE;
        }

        @Override
        public List<KafkaPartitionSplit> snapshotState(long checkpointId) {
            return splits;
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return new CompletableFuture<>();
        }

        @Override
        public void addSplits(List<KafkaPartitionSplit> added) {
            splits.addAll(added);
            ASSIGNED.addAndGet(added.size());
        }

        @Override
        public void notifyNoMoreSplits() {}

        @Override
        public void close() {}
    }

    static class Enumerator implements SplitEnumerator<KafkaPartitionSplit, Integer> {
        private final SplitEnumeratorContext<KafkaPartitionSplit> context;

        Enumerator(SplitEnumeratorContext<KafkaPartitionSplit> context) {
            this.context = context;
        }

        @Override
        public void start() {}

        @Override
        public void handleSplitRequest(int subtask, String host) {}

        @Override
        public void addSplitsBack(List<KafkaPartitionSplit> splits, int subtask) {}

        @Override
        public void addReader(int subtask) {
            for (int partition = subtask; partition < 3; partition += 2) {
                context.assignSplit(
                    new KafkaPartitionSplit(new TopicPartition("orders", partition), 100L * (partition + 1)), subtask);
            }
        }

        @Override
        public Integer snapshotState(long checkpointId) {
            return 0;
        }

        @Override
        public void close() {}
    }

    static class Partitions implements Source<Long, KafkaPartitionSplit, Integer> {
        @Override
        public Boundedness getBoundedness() {
            return Boundedness.CONTINUOUS_UNBOUNDED;
        }

        @Override
        public SourceReader<Long, KafkaPartitionSplit> createReader(SourceReaderContext context) {
            return new Reader();
        }

        @Override
        public SplitEnumerator<KafkaPartitionSplit, Integer> createEnumerator(
                SplitEnumeratorContext<KafkaPartitionSplit> context) {
            return new Enumerator(context);
        }

        @Override
        public SplitEnumerator<KafkaPartitionSplit, Integer> restoreEnumerator(
                SplitEnumeratorContext<KafkaPartitionSplit> context, Integer state) {
            return new Enumerator(context);
        }

        @Override
        public SimpleVersionedSerializer<KafkaPartitionSplit> getSplitSerializer() {
            return new KafkaPartitionSplitSerializer();
        }

        @Override
        public SimpleVersionedSerializer<Integer> getEnumeratorCheckpointSerializer() {
            return new SimpleVersionedSerializer<Integer>() {
                @Override
                public int getVersion() {
                    return 0;
                }

                @Override
                public byte[] serialize(Integer state) {
                    return new byte[] {0};
                }

                @Override
                public Integer deserialize(int version, byte[] bytes) {
                    return 0;
                }
            };
        }
    }

    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("rest.bind-address", "127.0.0.1");
        settings.setString("rest.address", "127.0.0.1");
        settings.setString("rest.bind-port", "0");
        settings.setString("taskmanager.numberOfTaskSlots", "2");
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        env.setParallelism(2);
        env.setMaxParallelism(8);
        env.fromSource(new Partitions(), WatermarkStrategy.noWatermarks(), "orders", Types.LONG).uid("orders")
            .sinkTo(new DiscardingSink<>()).uid("nothing");
        JobClient job = env.executeAsync("kafka-2");
        while (ASSIGNED.get() < 3) {
            Thread.sleep(50);
        }
        System.out.println(job.stopWithSavepoint(
            false, "file://" + arguments[0] + "/kafka-2", SavepointFormatType.CANONICAL).get());
        System.exit(0);
    }
}
