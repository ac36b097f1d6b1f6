import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.AsyncCallback.AddCallback;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Opening what a writer left open. */
final class Recovering {
  private static final int WINDOW = 2000;

  private Recovering() {
  }

  /**
   * recover SIZE LEDGERS TAIL BEFORE...: for each BEFORE that many ledgers of BEFORE entries that everybody knows to be
   * confirmed, and TAIL entries that went out as one window; then they are recovered, one of each BEFORE in turn.
   * With parallel=1 by a client that reads ahead (enableParallelRecoveryRead), which is not the default.
   */
  static String recover(World world, String[] words) throws Exception {
    int size = Integer.parseInt(words[0]);
    int count = Integer.parseInt(words[1]);
    int tail = Integer.parseInt(words[2]);
    int[] lengths = Arrays.stream(words, 3, words.length).mapToInt(Integer::parseInt).toArray();
    world.makePayloads(size);
    List<long[]> rows = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      long[] row = new long[lengths.length];
      for (int j = 0; j < lengths.length; j++) {
        row[j] = leftOpen(world, lengths[j], tail);
      }
      rows.add(row);
    }
    boolean parallel = world.number("parallel", 0) == 1;
    BookKeeper client = parallel ? new BookKeeper(readingAhead(world)) : world.client;
    double[][] millis = new double[lengths.length][count];
    double[] cpu = world.cpuNow();
    for (int i = 0; i < count; i++) {
      for (int j = 0; j < lengths.length; j++) {
        millis[j][i] = timed(world, client, rows.get(i)[j], lengths[j] + tail - 1);
      }
    }
    double[] after = world.cpuNow();
    long verified = 0;
    for (long[] row : rows) {
      for (int j = 0; j < lengths.length; j++) {
        world.readBack(row[j], lengths[j] + tail, size);
        world.client.deleteLedger(row[j]);
        verified += lengths[j] + tail;
      }
    }
    if (parallel) {
      client.close();
    }
    StringBuilder medians = new StringBuilder();
    for (int j = 0; j < lengths.length; j++) {
      medians.append(String.format(Locale.ROOT, "%s\"%d\":%.3f", j == 0 ? "" : ",", lengths[j], median(millis[j])));
    }
    return String.format(Locale.ROOT, "\"ledgers\":%d,\"above_lac\":%d,\"ms\":{%s},%s,\"failed\":0,\"verified\":%d",
        count * lengths.length, tail, medians, World.perEntry(cpu, after, count * lengths.length), verified);
  }

  private static ClientConfiguration readingAhead(World world) {
    ClientConfiguration conf = world.configuration();
    conf.setEnableParallelRecoveryRead(true);
    conf.setRecoveryReadBatchSize(1000);
    return conf;
  }

  /**
   * Writes a ledger and leaves it. The tail is sent from the callback of the entry before it, which runs on the thread
   * that takes this ledger's acknowledgements: none is taken before all are sent, so their headers carry the same LAC.
   */
  private static long leftOpen(World world, int before, int tail) throws Exception {
    LedgerHandle ledger = before > 1 ? world.fill(before - 1, WINDOW) : world.create();
    Semaphore done = new Semaphore(0);
    AtomicInteger failed = new AtomicInteger();
    AddCallback counted = (code, handle, entry, context) -> {
      if (code != 0) {
        failed.incrementAndGet();
      }
      done.release();
    };
    ledger.asyncAddEntry(world.payload(before - 1), (code, handle, entry, context) -> {
      for (int i = 0; i < tail; i++) {
        ledger.asyncAddEntry(world.payload(before + i), counted, null);
      }
      counted.addComplete(code, handle, entry, context);
    }, null);
    done.acquire(tail + 1);
    if (failed.get() > 0) {
      throw new IllegalStateException(failed.get() + " adds failed");
    }
    LedgerHandle beside = world.client.openLedgerNoRecovery(ledger.getId(), world.digest(), World.PASSWORD);
    long lac = beside.readLastConfirmed();
    beside.close();
    if (lac != before - 1) {
      throw new IllegalStateException("ledger " + ledger.getId() + ": its LAC is " + lac + ", not " + (before - 1));
    }
    return ledger.getId();
  }

  private static double timed(World world, BookKeeper client, long ledger, long last) throws Exception {
    long start = System.nanoTime();
    LedgerHandle reader = client.openLedger(ledger, world.digest(), World.PASSWORD);
    double millis = (System.nanoTime() - start) / 1e6;
    if (reader.getLastAddConfirmed() != last) {
      throw new IllegalStateException("ledger " + ledger + " ends at " + reader.getLastAddConfirmed() + ", not " + last);
    }
    reader.close();
    return millis;
  }

  private static double median(double[] millis) {
    double[] sorted = millis.clone();
    Arrays.sort(sorted);
    return (sorted[(sorted.length - 1) / 2] + sorted[sorted.length / 2]) / 2;
  }
}
