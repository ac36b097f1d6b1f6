import java.util.Locale;
import org.apache.bookkeeper.client.LedgerHandle;

/** Opening what a writer left open. */
final class Recovering {
  private Recovering() {
  }

  /** recover SIZE COUNT WINDOW: recovery of a ledger left open with COUNT entries. */
  static String recover(World world, String[] words) throws Exception {
    int size = Integer.parseInt(words[0]);
    long count = Long.parseLong(words[1]);
    world.makePayloads(size);
    LedgerHandle ledger = world.fill(count, Integer.parseInt(words[2]));
    long start = System.nanoTime();
    LedgerHandle reader = world.client.openLedger(ledger.getId(), world.digest(), World.PASSWORD);
    double millis = (System.nanoTime() - start) / 1e6;
    long last = reader.getLastAddConfirmed();
    reader.close();
    world.client.deleteLedger(ledger.getId());
    return String.format(Locale.ROOT, "\"entries\":%d,\"ms\":%.2f,\"last\":%d,\"failed\":0", count, millis, last);
  }
}
