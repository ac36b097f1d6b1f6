import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.LedgerHandle;

/** Adds: with a full window, and one at a time. */
final class Adding {
  private Adding() {
  }

  /** append SIZE SECONDS WINDOW: asynchronous adds, at most WINDOW outstanding. */
  static String append(World world, String[] words) throws Exception {
    int size = Integer.parseInt(words[0]);
    int window = Integer.parseInt(words[2]);
    world.makePayloads(size);
    LedgerHandle ledger = world.create();
    Semaphore outstanding = new Semaphore(window);
    AtomicInteger failed = new AtomicInteger();
    double[] cpu = world.cpuNow();
    long start = System.nanoTime();
    long deadline = start + (long) (Double.parseDouble(words[1]) * 1e9);
    long count = 0;
    while (System.nanoTime() < deadline) {
      outstanding.acquire();
      ledger.asyncAddEntry(world.payload(count), (code, handle, entry, context) -> {
        if (code != 0) {
          failed.incrementAndGet();
        }
        outstanding.release();
      }, null);
      count++;
    }
    outstanding.acquire(window);
    double wall = (System.nanoTime() - start) / 1e9;
    double[] after = world.cpuNow();
    ledger.close();
    double reading = failed.get() == 0 ? world.readBack(ledger.getId(), count, size) : 0;
    world.client.deleteLedger(ledger.getId());
    return String.format(Locale.ROOT,
        "\"entries\":%d,\"seconds\":%.3f,\"entries_per_s\":%.0f,\"mb_per_s\":%.1f,%s,\"failed\":%d,\"verified\":%d,"
        + "\"read_entries_per_s\":%.0f", count, wall, count / wall, count * (double) size / wall / 1e6,
        World.perEntry(cpu, after, count), failed.get(), failed.get() == 0 ? count : 0, reading > 0 ? count / reading : 0);
  }

  /** latency SIZE COUNT: one add at a time. */
  static String latency(World world, String[] words) throws Exception {
    int size = Integer.parseInt(words[0]);
    int count = Integer.parseInt(words[1]);
    world.makePayloads(size);
    LedgerHandle ledger = world.create();
    long[] nanos = new long[count];
    double[] cpu = world.cpuNow();
    for (int i = 0; i < count; i++) {
      long start = System.nanoTime();
      ledger.addEntry(world.payload(i));
      nanos[i] = System.nanoTime() - start;
    }
    double[] after = world.cpuNow();
    ledger.close();
    world.readBack(ledger.getId(), count, size);
    world.client.deleteLedger(ledger.getId());
    return String.format(Locale.ROOT, "\"entries\":%d,%s,%s,\"failed\":0,\"verified\":%d", count, World.percentiles(nanos),
        World.perEntry(cpu, after, count), count);
  }
}
