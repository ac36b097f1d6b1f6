import io.netty.buffer.Unpooled;
import java.util.Arrays;
import java.util.Locale;
import java.util.StringJoiner;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;

/** Catch-up reads of a closed ledger that `fill` wrote. */
final class Reading {
  private static final int ENTRIES = 1000;
  private static final int BYTES = 1 << 20;

  private Reading() {
  }

  /** fill-ledgers LEDGERS COUNT SIZE WINDOW: closed ledgers with COUNT entries each, written in turn. */
  static String fill(World world, String[] words) throws Exception {
    int ledgers = Integer.parseInt(words[0]);
    long count = Long.parseLong(words[1]);
    world.makePayloads(Integer.parseInt(words[2]));
    StringJoiner ids = new StringJoiner(",");
    for (LedgerHandle ledger : world.fill(ledgers, count, Integer.parseInt(words[3]))) {
      ledger.close();
      if (ledger.getLastAddConfirmed() != count - 1) {
        throw new IllegalStateException("adds failed: the ledger ends at " + ledger.getLastAddConfirmed());
      }
      ids.add(Long.toString(ledger.getId()));
    }
    return String.format(Locale.ROOT, "\"ledgers\":[%s],\"entries\":%d,\"failed\":0", ids, ledgers * count);
  }

  /**
   * read-ledger LEDGER COUNT SIZE TIMES: reads it all, some times. mode=range: range reads of at most 1,000 entries or 1 MiB;
   * mode=batch: batch reads of the same size, which only a V2 client has. depth=4: so many are outstanding.
   */
  static String read(World world, String[] words) throws Exception {
    long ledger = Long.parseLong(words[0]);
    long count = Long.parseLong(words[1]);
    int size = Integer.parseInt(words[2]);
    int times = Integer.parseInt(words[3]);
    boolean batch = world.word("mode", "range").equals("batch");
    world.makePayloads(size);
    double[] rates = new double[times];
    double[] cpu = world.cpuNow();
    for (int i = 0; i < times; i++) {
      double seconds = batch
          ? batchRead(world, ledger, count, size, world.number("depth", 4)) : world.readBack(ledger, count, size);
      rates[i] = count / seconds;
    }
    double[] after = world.cpuNow();
    Arrays.sort(rates);
    double rate = rates[times / 2];
    return String.format(Locale.ROOT,
        "\"entries\":%d,\"entries_per_s\":%.0f,\"mb_per_s\":%.1f,\"ms\":%.3f,%s,\"failed\":0,\"verified\":%d", count, rate,
        rate * size / 1e6, count / rate * 1e3, World.perEntry(cpu, after, count * times), count * times);
  }

  /** Reads 0..count-1 by batch reads and compares; returns seconds. Throws when an entry is missing or differs. */
  private static double batchRead(World world, long ledger, long count, int size, int depth) throws Exception {
    ReadHandle reader = world.client.openLedger(ledger, world.digest(), World.PASSWORD);
    int step = Math.max(1, Math.min(ENTRIES, BYTES / (size + 64)));
    Semaphore outstanding = new Semaphore(depth);
    AtomicLong good = new AtomicLong();
    long start = System.nanoTime();
    for (long first = 0; first < count; first += step) {
      outstanding.acquire();
      batchesOf(world, reader, first, Math.min(count, first + step), good).whenComplete((all, error) -> {
        if (error != null) {
          error.printStackTrace();
        }
        outstanding.release();
      });
    }
    outstanding.acquire(depth);
    double seconds = (System.nanoTime() - start) / 1e9;
    reader.close();
    if (good.get() != count) {
      throw new IllegalStateException("only " + good.get() + " of " + count + " entries came back as written");
    }
    return seconds;
  }

  /** first..end-1 in as many batches as the bookie makes of it. */
  private static CompletableFuture<Void> batchesOf(World world, ReadHandle reader, long first, long end, AtomicLong good) {
    return reader.batchReadAsync(first, (int) (end - first), BYTES).thenCompose(entries -> {
      long next = compare(world, entries, first, good);
      return next < end && next > first
          ? batchesOf(world, reader, next, end, good) : CompletableFuture.completedFuture(null);
    });
  }

  private static long compare(World world, LedgerEntries entries, long next, AtomicLong good) {
    try (entries) {
      for (LedgerEntry entry : entries) {
        if (entry.getEntryId() == next && entry.getEntryBuffer().equals(Unpooled.wrappedBuffer(world.payload(next)))) {
          good.incrementAndGet();
        }
        next++;
      }
    }
    return next;
  }

  /** delete-ledgers LEDGER...: deletes ledgers. */
  static String delete(World world, String[] words) throws Exception {
    for (String word : words) {
      world.client.deleteLedger(Long.parseLong(word));
    }
    return String.format(Locale.ROOT, "\"deleted\":%d,\"failed\":0", words.length);
  }
}
