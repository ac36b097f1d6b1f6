import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.LedgerHandle;

/** How cost grows with the number of open ledgers. */
final class Scaling {
  private static final int IN_FLIGHT = 64;

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
    LedgerHandle[] handles = new LedgerHandle[ledgers];
    Semaphore creating = new Semaphore(IN_FLIGHT);
    long start = System.nanoTime();
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
