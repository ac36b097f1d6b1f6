import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.IntStream;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Tailing reads: a paced writer, and a reader that follows it with long polls. */
final class Tailing {
  private static final long LAST_ENTRY_MS = 2000;
  private static final int WARM_UP_SHARE = 3;
  private static final long POLL_MS = 1000;

  private Tailing() {
  }

  /**
   * tail SIZE COUNT RATE: from the call of an add to the delivery of its entry; the schedule is absolute. Nothing is
   * added after the last entry: last_us says when it came by itself, -1 that it did not. explicit=MS lets the writer
   * send its LAC by itself at that interval, which is off by default.
   */
  static String tail(World world, String[] words) throws Exception {
    int size = Integer.parseInt(words[0]);
    int count = Integer.parseInt(words[1]);
    long nanosBetween = 1_000_000_000L / Integer.parseInt(words[2]);
    world.makePayloads(size);
    ClientConfiguration conf = world.configuration();
    conf.setExplictLacInterval(world.number("explicit", 0));
    long[] sent = new long[count];
    long[] acknowledged = new long[count];
    long[] delivered = new long[count];
    double[] cpu = world.cpuNow();
    BookKeeper client = world.number("explicit", 0) == 0 ? world.client : new BookKeeper(conf);
    try {
      LedgerHandle ledger = client.createLedger(world.number("e", 3), world.number("qw", 3), world.number("qa", 2),
          world.digest(), World.PASSWORD);
      ReadHandle reader = client.openLedgerNoRecovery(ledger.getId(), world.digest(), World.PASSWORD);
      CompletableFuture<Void> following = new CompletableFuture<>();
      Thread thread = new Thread(() -> follow(world, reader, delivered, following));
      thread.start();
      CountDownLatch acks = new CountDownLatch(count);
      long start = System.nanoTime();
      for (int i = 0; i < count; i++) {
        for (long left = start + i * nanosBetween - System.nanoTime(); left > 0;
            left = start + i * nanosBetween - System.nanoTime()) {
          LockSupport.parkNanos(left);
        }
        sent[i] = System.nanoTime();
        ledger.asyncAddEntry(world.payload(i), (code, handle, entry, context) -> {
          if (code == 0) {
            acknowledged[(int) entry] = System.nanoTime();
          }
          acks.countDown();
        }, null);
      }
      acks.await();
      boolean alone = true;
      try {
        following.get(LAST_ENTRY_MS, TimeUnit.MILLISECONDS);
      } catch (TimeoutException late) {
        alone = false; // the figures need only the others
      }
      ledger.close();
      thread.interrupt();
      thread.join();
      double[] after = world.cpuNow();
      world.readBack(ledger.getId(), count, size);
      client.deleteLedger(ledger.getId());
      long failed = Arrays.stream(acknowledged).filter(at -> at == 0).count();
      return String.format(Locale.ROOT, "\"entries\":%d,\"seconds\":%.3f,%s,\"ack_p50_us\":%.1f,\"last_us\":%.1f,%s,"
          + "\"failed\":%d,\"verified\":%d", count, (sent[count - 1] - sent[0]) / 1e9,
          World.percentiles(times(sent, delivered)), median(times(sent, acknowledged)),
          alone ? (delivered[count - 1] - sent[count - 1]) / 1e3 : -1.0, World.perEntry(cpu, after, count), failed, count);
    } finally {
      if (client != world.client) {
        client.close();
      }
    }
  }

  /** Long polls; what came meanwhile is read as a range. */
  private static void follow(World world, ReadHandle reader, long[] delivered, CompletableFuture<Void> done) {
    try {
      long next = 0;
      while (next < delivered.length) {
        try (LastConfirmedAndEntry polled = reader.readLastAddConfirmedAndEntryAsync(next, POLL_MS, false).get()) {
          if (polled.hasEntry()) {
            next = deliver(world, polled.getEntry(), next, delivered);
          }
        }
        long confirmed = Math.min(reader.getLastAddConfirmed(), delivered.length - 1);
        if (next <= confirmed) {
          try (LedgerEntries entries = reader.readAsync(next, confirmed).get()) {
            for (LedgerEntry entry : entries) {
              next = deliver(world, entry, next, delivered);
            }
          }
        }
      }
      done.complete(null);
    } catch (InterruptedException end) {
      // The last entry did not come while the ledger was open.
    } catch (Exception error) {
      done.completeExceptionally(error);
    }
  }

  private static long deliver(World world, LedgerEntry entry, long expected, long[] delivered) {
    delivered[(int) expected] = System.nanoTime();
    if (entry.getEntryId() != expected || !Arrays.equals(entry.getEntryBytes(), world.payload(expected))) {
      throw new IllegalStateException("the reader got something else as entry " + expected);
    }
    return expected + 1;
  }

  /** The times of the entries after the warm-up and before the last one; without those that never came. */
  private static long[] times(long[] from, long[] to) {
    return IntStream.range(from.length / WARM_UP_SHARE, from.length - 1).filter(i -> to[i] > 0)
        .mapToLong(i -> to[i] - from[i]).toArray();
  }

  private static double median(long[] nanos) {
    Arrays.sort(nanos);
    return nanos[nanos.length / 2] / 1e3;
  }
}
