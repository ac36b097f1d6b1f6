import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import org.apache.bookkeeper.client.LedgerHandle;

/** Adds: with a full window, and one at a time. */
final class Adding {
  private static final long BUCKET_NANOS = 100_000_000;

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
    LongAdder completed = new LongAdder();
    Sampler sampler = new Sampler(completed);
    double[] cpu = world.cpuNow();
    sampler.start();
    long start = System.nanoTime();
    long deadline = start + (long) (Double.parseDouble(words[1]) * 1e9);
    long count = 0;
    while (System.nanoTime() < deadline) {
      outstanding.acquire();
      ledger.asyncAddEntry(world.payload(count), (code, handle, entry, context) -> {
        if (code != 0) {
          failed.incrementAndGet();
        }
        completed.increment();
        outstanding.release();
      }, null);
      count++;
    }
    outstanding.acquire(window);
    double wall = (System.nanoTime() - start) / 1e9;
    double[] after = world.cpuNow();
    sampler.interrupt();
    sampler.join();
    ledger.close();
    double reading = failed.get() == 0 ? world.readBack(ledger.getId(), count, size) : 0;
    world.client.deleteLedger(ledger.getId());
    return String.format(Locale.ROOT,
        "\"entries\":%d,\"seconds\":%.3f,\"entries_per_s\":%.0f,\"mb_per_s\":%.1f,%s,\"failed\":%d,\"verified\":%d,"
        + "\"read_entries_per_s\":%.0f,\"timeline\":%s", count, wall, count / wall, count * (double) size / wall / 1e6,
        World.perEntry(cpu, after, count), failed.get(), failed.get() == 0 ? count : 0, reading > 0 ? count / reading : 0,
        sampler.counts);
  }

  /** How many entries were completed in each tenth of a second. */
  private static final class Sampler extends Thread {
    final List<Long> counts = new ArrayList<>();
    private final LongAdder completed;

    Sampler(LongAdder completed) {
      this.completed = completed;
      setDaemon(true);
    }

    @Override
    public void run() {
      long before = 0;
      long next = System.nanoTime() + BUCKET_NANOS;
      try {
        while (true) {
          Thread.sleep(Math.max(0, (next - System.nanoTime()) / 1_000_000));
          long now = completed.sum();
          counts.add(now - before);
          before = now;
          next += BUCKET_NANOS;
        }
      } catch (InterruptedException end) {
        return;
      }
    }
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
    return String.format(Locale.ROOT, "\"entries\":%d,%s,%s,\"failed\":0,\"verified\":%d,\"sample_us\":%s", count,
        World.percentiles(nanos), World.perEntry(cpu, after, count), count, World.quantiles(nanos));
  }
}
