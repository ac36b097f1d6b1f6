import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.ArrayList;
import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.LedgerHandle;

/** Ledgers made, closed and opened: whole cycles one after another, and creations at once. */
final class Lifecycle {
  private static final int IN_FLIGHT = 64;
  private static final int ENTRY_BYTES = 100;

  private Lifecycle() {
  }

  /** cycle COUNT: create a ledger, add one entry, close, open it again; one at a time. */
  static String cycle(World world, String[] words) throws Exception {
    int count = Integer.parseInt(words[0]);
    world.makePayloads(ENTRY_BYTES);
    long[] nanos = new long[4];
    List<Long> ledgers = new ArrayList<>();
    double[] cpu = world.cpuNow();
    long start = System.nanoTime();
    for (int i = 0; i < count; i++) {
      long begin = System.nanoTime();
      LedgerHandle ledger = world.create();
      long created = System.nanoTime();
      ledger.addEntry(world.payload(0));
      long added = System.nanoTime();
      ledger.close();
      long closed = System.nanoTime();
      LedgerHandle reader = world.client.openLedger(ledger.getId(), world.digest(), World.PASSWORD);
      long opened = System.nanoTime();
      if (!reader.isClosed() || reader.getLastAddConfirmed() != 0) {
        throw new IllegalStateException("ledger " + ledger.getId() + " is not closed at entry 0");
      }
      reader.close();
      ledgers.add(ledger.getId());
      nanos[0] += created - begin;
      nanos[1] += added - created;
      nanos[2] += closed - added;
      nanos[3] += opened - closed;
    }
    double wall = (System.nanoTime() - start) / 1e9;
    double[] after = world.cpuNow();
    for (long ledger : ledgers) {
      world.readBack(ledger, 1, ENTRY_BYTES);
      world.client.deleteLedger(ledger);
    }
    return String.format(Locale.ROOT, "\"cycles\":%d,\"cycles_per_s\":%.1f,\"create_ms\":%.3f,\"add_ms\":%.3f,"
        + "\"close_ms\":%.3f,\"open_ms\":%.3f,%s,\"failed\":0,\"verified\":%d", count, count / wall,
        nanos[0] / 1e6 / count, nanos[1] / 1e6 / count, nanos[2] / 1e6 / count, nanos[3] / 1e6 / count,
        World.perEntry(cpu, after, count), count);
  }

  /** create COUNT: create ledgers, 64 at once. */
  static String create(World world, String[] words) throws Exception {
    int count = Integer.parseInt(words[0]);
    Semaphore outstanding = new Semaphore(IN_FLIGHT);
    AtomicInteger failed = new AtomicInteger();
    List<LedgerHandle> ledgers = Collections.synchronizedList(new ArrayList<>());
    double[] cpu = world.cpuNow();
    long start = System.nanoTime();
    for (int i = 0; i < count; i++) {
      outstanding.acquire();
      world.client.asyncCreateLedger(world.number("e", 3), world.number("qw", 3), world.number("qa", 2), world.digest(),
          World.PASSWORD, (code, ledger, context) -> {
            if (code == 0) {
              ledgers.add(ledger);
            } else {
              failed.incrementAndGet();
            }
            outstanding.release();
          }, null, null);
    }
    outstanding.acquire(IN_FLIGHT);
    double wall = (System.nanoTime() - start) / 1e9;
    double[] after = world.cpuNow();
    HashSet<Long> ids = new HashSet<>();
    for (LedgerHandle ledger : new ArrayList<>(ledgers)) {
      ids.add(ledger.getId());
      ledger.close();
      world.client.deleteLedger(ledger.getId());
    }
    if (ids.size() + failed.get() != count) {
      throw new IllegalStateException("two ledgers have one id");
    }
    return String.format(Locale.ROOT, "\"creates\":%d,\"creates_per_s\":%.1f,%s,\"failed\":%d", count, count / wall,
        World.perEntry(cpu, after, count), failed.get());
  }
}
