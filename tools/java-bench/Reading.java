import java.util.Locale;
import org.apache.bookkeeper.client.LedgerHandle;

/** Reads of what was written. */
final class Reading {
  private Reading() {
  }

  /** read SIZE COUNT: range reads of at most 1,000 entries or 1 MiB, four outstanding. */
  static String read(World world, String[] words) throws Exception {
    int size = Integer.parseInt(words[0]);
    long count = Long.parseLong(words[1]);
    world.makePayloads(size);
    LedgerHandle ledger = world.fill(count, 2000);
    ledger.close();
    double seconds = world.readBack(ledger.getId(), count, size);
    world.client.deleteLedger(ledger.getId());
    return String.format(Locale.ROOT, "\"entries\":%d,\"entries_per_s\":%.0f,\"failed\":0", count, count / seconds);
  }
}
