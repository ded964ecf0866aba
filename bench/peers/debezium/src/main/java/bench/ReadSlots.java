package bench;

import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Reads slots to a given number of events with the Debezium embedded engine and discards the JSON.
 *
 * <p>Connector settings come as properties on standard input up to an empty line (a password is never in the
 * arguments). Then each line is "slot events": the slot is read on the spot, and one line of JSON answers it.
 * All slots are read by one virtual machine, so that later ones meet compiled code. The clock runs from the start
 * of the engine to the last event, connecting included.
 */
public final class ReadSlots {
    private ReadSlots() {}

    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in));
        var settings = new Properties();
        String line;
        while ((line = input.readLine()) != null && !line.isEmpty()) {
            int equals = line.indexOf('=');
            settings.setProperty(line.substring(0, equals), line.substring(equals + 1));
        }
        while ((line = input.readLine()) != null) {
            String[] request = line.split(" ");
            System.out.println(read(settings, request[0], Long.parseLong(request[1])));
            System.out.flush();
        }
    }

    private static String read(Properties settings, String slot, long events) throws Exception {
        Path offsets = Files.createTempFile("debezium-", ".offsets");
        Files.delete(offsets);
        var properties = new Properties();
        properties.putAll(settings);
        properties.setProperty("slot.name", slot);
        properties.setProperty("offset.storage.file.filename", offsets.toString());

        var seen = new AtomicLong();
        var characters = new AtomicLong();
        var firstAt = new AtomicLong();
        var failure = new AtomicReference<Throwable>();
        var done = new CountDownLatch(1);
        long startedAt = System.nanoTime();
        var finishedAt = new AtomicLong();

        DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> consumer = new DebeziumEngine.ChangeConsumer<>() {
            @Override
            public void handleBatch(
                    List<ChangeEvent<String, String>> batch,
                    DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer)
                    throws InterruptedException {
                firstAt.compareAndSet(0, System.nanoTime());
                long length = 0;
                for (ChangeEvent<String, String> event : batch) {
                    length += event.value() == null ? 0 : event.value().length();
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
                characters.addAndGet(length);
                if (seen.addAndGet(batch.size()) >= events) {
                    finishedAt.compareAndSet(0, System.nanoTime());
                    done.countDown();
                }
            }
        };
        var engine = DebeziumEngine.create(Json.class)
                .using(properties)
                .using((success, message, error) -> {
                    if (!success) {
                        failure.set(error == null ? new IllegalStateException(message) : error);
                    }
                    done.countDown();
                })
                .notifying(consumer)
                .build();
        var thread = new Thread(engine, "engine");
        thread.start();
        done.await();
        engine.close();
        thread.join();
        Files.deleteIfExists(offsets);
        if (seen.get() < events) {
            throw new IllegalStateException("the engine ended after " + seen + " events", failure.get());
        }
        return String.format(
                Locale.ROOT,
                "{\"rows\": %d, \"characters\": %d, \"seconds\": %.6f, \"seconds_to_first\": %.6f}",
                seen.get(),
                characters.get(),
                (finishedAt.get() - startedAt) / 1e9,
                (firstAt.get() - startedAt) / 1e9);
    }
}
