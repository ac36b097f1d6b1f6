import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.LedgerHandle;

/** Writing while bookies fail: what the harness does to them meanwhile is its own business. */
final class Failing {
  private static final int BUCKETS_PER_SECOND = 10;
  private static final Map<Long, LedgerHandle> LEDGERS = new HashMap<>();

  private Failing() {
  }

  /** begin: a new ledger, and where its bookies listen. */
  static String begin(World world, String[] words) throws Exception {
    LedgerHandle ledger = world.create();
    LEDGERS.put(ledger.getId(), ledger);
    List<String> bookies = new ArrayList<>();
    ledger.getLedgerMetadata().getAllEnsembles().get(0L).forEach(bookie -> bookies.add("\"" + bookie + "\""));
    return "\"ledger\":" + ledger.getId() + ",\"ensemble\":" + bookies;
  }

  /** write LEDGER SIZE SECONDS WINDOW: asynchronous adds; acknowledgements over time, and the longest time without. */
  static String write(World world, String[] words) throws Exception {
    LedgerHandle ledger = LEDGERS.get(Long.parseLong(words[0]));
    int size = Integer.parseInt(words[1]);
    int window = Integer.parseInt(words[3]);
    world.makePayloads(size);
    Acknowledgements acks = new Acknowledgements();
    Semaphore outstanding = new Semaphore(window);
    AtomicInteger failed = new AtomicInteger();
    long before = residentBytes();
    long largest = before;
    acks.begin();
    long deadline = acks.start + (long) (Double.parseDouble(words[2]) * 1e9);
    long count = 0;
    while (System.nanoTime() < deadline) {
      outstanding.acquire();
      ledger.asyncAddEntry(world.payload(count), (code, handle, entry, context) -> {
        if (code == 0) {
          acks.add();
        } else {
          failed.incrementAndGet();
        }
        outstanding.release();
      }, null);
      if (++count % 10_000 == 0) {
        largest = Math.max(largest, residentBytes());
      }
    }
    outstanding.acquire(window);
    return String.format(Locale.ROOT, "\"entries\":%d,\"failed\":%d,\"start_ns\":%d,\"longest_gap_ms\":%.1f,"
        + "\"longest_gap_at_s\":%.2f,\"growth_mib\":%.1f,\"timeline\":%s", count, failed.get(), acks.start,
        acks.longestGap / 1e6, acks.longestGapAt / 1e9, (largest - before) / 1048576.0, acks.timeline());
  }

  /** verify LEDGER SIZE COUNT: close, read everything back and compare, delete. */
  static String verify(World world, String[] words) throws Exception {
    long id = Long.parseLong(words[0]);
    int size = Integer.parseInt(words[1]);
    long count = Long.parseLong(words[2]);
    world.makePayloads(size);
    LEDGERS.remove(id).close();
    double seconds = world.readBack(id, count, size);
    world.client.deleteLedger(id);
    return String.format(Locale.ROOT, "\"verified\":%d,\"seconds\":%.3f", count, seconds);
  }

  private static long residentBytes() throws Exception {
    String[] fields = Files.readString(Path.of("/proc/self/statm")).split(" ");
    return Long.parseLong(fields[1]) * 4096;
  }

  /** Counts acknowledgements; called back by one thread at a time, as all are for one ledger. */
  private static final class Acknowledgements {
    private final List<Integer> buckets = new ArrayList<>();
    private long last;
    long start;
    long longestGap;
    long longestGapAt;

    void begin() {
      start = System.nanoTime();
      last = start;
    }

    synchronized void add() {
      long now = System.nanoTime();
      if (now - last > longestGap) {
        longestGap = now - last;
        longestGapAt = last - start;
      }
      last = now;
      int bucket = (int) ((now - start) * BUCKETS_PER_SECOND / 1_000_000_000L);
      while (buckets.size() <= bucket) {
        buckets.add(0);
      }
      buckets.set(bucket, buckets.get(bucket) + 1);
    }

    synchronized String timeline() {
      return buckets.toString();
    }
  }
}
