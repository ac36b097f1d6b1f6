import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import org.apache.bookkeeper.client.AsyncCallback;
import org.apache.bookkeeper.client.LedgerHandle;

/** How cost grows with the number of open ledgers. */
final class Scaling {
  private static final int IN_FLIGHT = 64;
  private static final int CLOSING_THREADS = 16;

  private Scaling() {
  }

  /**
   * many LEDGERS SIZE SECONDS WINDOW: opens ledgers, says what memory a handle takes, then adds to them in turn, twice;
   * the second time counts.
   */
  static String many(World world, String[] words) throws Exception {
    int ledgers = Integer.parseInt(words[0]);
    int size = Integer.parseInt(words[1]);
    double seconds = Double.parseDouble(words[2]);
    int window = Integer.parseInt(words[3]);
    world.makePayloads(size);
    long heap = usedHeap();
    long start = System.nanoTime();
    LedgerHandle[] handles = create(world, ledgers);
    double creatingSeconds = (System.nanoTime() - start) / 1e9;
    long perHandle = (usedHeap() - heap) / ledgers;
    long[] counts = new long[ledgers];
    AtomicInteger failed = new AtomicInteger();
    inTurn(world, handles, counts, seconds, window, failed);
    double[] before = world.cpuNow();
    start = System.nanoTime();
    long count = inTurn(world, handles, counts, seconds, window, failed);
    double wall = (System.nanoTime() - start) / 1e9;
    double[] after = world.cpuNow();
    for (int i = 0; i < ledgers; i++) {
      handles[i].close();
      if (failed.get() == 0) {
        world.readBack(handles[i].getId(), counts[i], size);
      }
      world.client.deleteLedger(handles[i].getId());
    }
    return String.format(Locale.ROOT,
        "\"ledgers\":%d,\"entries\":%d,\"entries_per_s\":%.0f,%s,\"opened_per_s\":%.0f,\"client_bytes\":%d,\"failed\":%d",
        ledgers, count, count / wall, World.perEntry(before, after, count), ledgers / creatingSeconds, perHandle,
        failed.get());
  }

  private static LedgerHandle[] create(World world, int ledgers) throws Exception {
    LedgerHandle[] handles = new LedgerHandle[ledgers];
    Semaphore creating = new Semaphore(IN_FLIGHT);
    for (int i = 0; i < ledgers; i++) {
      creating.acquire();
      int number = i;
      world.client.asyncCreateLedger(world.number("e", 3), world.number("qw", 3), world.number("qa", 2),
          world.digest(), World.PASSWORD, (code, handle, context) -> {
            handles[number] = handle;
            creating.release();
          }, null, null);
    }
    creating.acquire(IN_FLIGHT);
    return handles;
  }

  private static LedgerHandle[] kept = new LedgerHandle[0];
  private static long[] keptCounts = new long[0];

  /** open-many LEDGERS SIZE: opens ledgers and keeps them, beside those that are open already. */
  static String openMany(World world, String[] words) throws Exception {
    world.makePayloads(Integer.parseInt(words[1]));
    LedgerHandle[] more = create(world, Integer.parseInt(words[0]));
    int before = kept.length;
    kept = java.util.Arrays.copyOf(kept, before + more.length);
    System.arraycopy(more, 0, kept, before, more.length);
    keptCounts = java.util.Arrays.copyOf(keptCounts, kept.length);
    return "\"open\":" + kept.length + ",\"failed\":0";
  }

  /**
   * round-robin LEDGERS SECONDS WINDOW SIZE: adds to the kept ledgers in turn; a WINDOW of 0 is one outstanding add for each
   * ledger, followed by the next as soon as it is acknowledged.
   */
  static String roundRobin(World world, String[] words) throws Exception {
    int ledgers = Integer.parseInt(words[0]);
    double seconds = Double.parseDouble(words[1]);
    int window = Integer.parseInt(words[2]);
    LedgerHandle[] handles = java.util.Arrays.copyOf(kept, ledgers);
    AtomicInteger failed = new AtomicInteger();
    double[] before = world.cpuNow();
    long start = System.nanoTime();
    long count = window > 0
        ? inTurn(world, handles, keptCounts, seconds, window, failed)
        : oneEach(world, handles, seconds, failed);
    double wall = (System.nanoTime() - start) / 1e9;
    return String.format(Locale.ROOT, "\"ledgers\":%d,\"entries\":%d,\"entries_per_s\":%.0f,%s,\"failed\":%d", ledgers,
        count, count / wall, World.perEntry(before, world.cpuNow(), count), failed.get());
  }

  private static long oneEach(World world, LedgerHandle[] handles, double seconds, AtomicInteger failed)
      throws Exception {
    long deadline = System.nanoTime() + (long) (seconds * 1e9);
    LongAdder count = new LongAdder();
    Semaphore ended = new Semaphore(0);
    for (int i = 0; i < handles.length; i++) {
      int number = i;
      count.increment();
      handles[i].asyncAddEntry(world.payload(keptCounts[i]++), new AsyncCallback.AddCallback() {
        @Override
        public void addComplete(int code, LedgerHandle handle, long entry, Object context) {
          if (code != 0) {
            failed.incrementAndGet();
          }
          if (code != 0 || System.nanoTime() >= deadline) {
            ended.release();
          } else {
            count.increment();
            handle.asyncAddEntry(world.payload(keptCounts[number]++), this, null);
          }
        }
      }, null);
    }
    ended.acquire(handles.length);
    return count.sum();
  }

  /** close-many SIZE: closes the kept ledgers, reads all of them back, deletes them. */
  static String closeMany(World world, String[] words) throws Exception {
    int size = Integer.parseInt(words[0]);
    ExecutorService threads = Executors.newFixedThreadPool(CLOSING_THREADS);
    List<Future<?>> waiting = new ArrayList<>();
    long verified = 0;
    for (int i = 0; i < kept.length; i++) {
      int number = i;
      verified += keptCounts[i];
      waiting.add(threads.submit(() -> {
        kept[number].close();
        world.readBack(kept[number].getId(), keptCounts[number], size);
        world.client.deleteLedger(kept[number].getId());
        return null;
      }));
    }
    for (Future<?> one : waiting) {
      one.get();
    }
    threads.shutdown();
    kept = new LedgerHandle[0];
    keptCounts = new long[0];
    return "\"verified\":" + verified + ",\"failed\":0";
  }

  /** Adds to one ledger after the other, over and over; returns how many entries. */
  private static long inTurn(World world, LedgerHandle[] handles, long[] counts, double seconds, int window,
      AtomicInteger failed) throws Exception {
    Semaphore outstanding = new Semaphore(window);
    long deadline = System.nanoTime() + (long) (seconds * 1e9);
    long count = 0;
    for (int i = 0; System.nanoTime() < deadline; i = (i + 1) % handles.length) {
      outstanding.acquire();
      handles[i].asyncAddEntry(world.payload(counts[i]++), (code, handle, entry, context) -> {
        if (code != 0) {
          failed.incrementAndGet();
        }
        outstanding.release();
      }, null);
      count++;
    }
    outstanding.acquire(window);
    return count;
  }

  private static long usedHeap() {
    System.gc();
    return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
  }
}
