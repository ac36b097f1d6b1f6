import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** What every job needs: the client, payloads, ledgers, the check of what was written, and the accounts. */
final class World {
  static final int PAYLOADS = 64;
  static final int QUANTILES_MAX = 400;
  static final byte[] PASSWORD = "bench".getBytes(StandardCharsets.UTF_8);

  final BookKeeper client;
  private final Map<String, String> options = new HashMap<>();
  private final Map<String, String> jobOptions = new HashMap<>();
  private final List<String> bookiePids = new ArrayList<>();
  private byte[][] payloads = new byte[0][];

  World(String[] args) throws Exception {
    for (int i = 0; i + 1 < args.length; i += 2) {
      options.put(args[i].replace("--", ""), args[i + 1]);
    }
    for (String pid : option("pids", "").split(",")) {
      if (!pid.isEmpty()) {
        bookiePids.add(pid);
      }
    }
    client = new BookKeeper(configuration());
  }

  /** The settings of every client of the benchmarks, also of a second one that a job opens. */
  ClientConfiguration configuration() {
    ClientConfiguration conf = new ClientConfiguration();
    conf.setMetadataServiceUri(option("uri", ""));
    conf.setUseV2WireProtocol(option("v2", "0").equals("1"));
    conf.setNumIOThreads(2);
    conf.setNumWorkerThreads(2);
    conf.setThrottleValue(0);
    conf.setAddEntryTimeout(30);
    conf.setReadEntryTimeout(30);
    return conf;
  }

  /** Takes the options of a job out of its words. */
  String[] take(String[] words) {
    jobOptions.clear();
    List<String> rest = new ArrayList<>();
    for (String word : words) {
      int equals = word.indexOf('=');
      if (equals > 0) {
        jobOptions.put(word.substring(0, equals), word.substring(equals + 1));
      } else {
        rest.add(word);
      }
    }
    return rest.toArray(new String[0]);
  }

  private String option(String name, String otherwise) {
    return jobOptions.getOrDefault(name, options.getOrDefault(name, otherwise));
  }

  String word(String name, String otherwise) {
    return option(name, otherwise);
  }

  int number(String name, int otherwise) {
    return Integer.parseInt(option(name, "" + otherwise));
  }

  BookKeeper.DigestType digest() {
    return BookKeeper.DigestType.valueOf(option("digest", "CRC32C"));
  }

  LedgerHandle create() throws Exception {
    return client.createLedger(number("e", 3), number("qw", 3), number("qa", 2), digest(), PASSWORD);
  }

  /** CPU seconds, user and system, that the operating system has charged to a process. */
  private static double cpu(String pid) throws Exception {
    String stat = Files.readString(Path.of("/proc/" + pid + "/stat"));
    String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
    return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / 100.0;
  }

  /** The CPU time so far: of this process, and of the bookies that are alive. */
  double[] cpuNow() throws Exception {
    double total = 0;
    for (String pid : bookiePids) {
      if (Files.exists(Path.of("/proc/" + pid))) {
        total += cpu(pid);
      }
    }
    return new double[] {cpu("" + ProcessHandle.current().pid()), total};
  }

  /** The fields that say what CPU time was used per entry since an account was taken. */
  static String perEntry(double[] before, double[] after, long count) {
    return String.format(Locale.ROOT, "\"client_cpu_us\":%.3f,\"bookies_cpu_us\":%.3f",
        (after[0] - before[0]) / count * 1e6, (after[1] - before[1]) / count * 1e6);
  }

  void makePayloads(int size) {
    payloads = new byte[PAYLOADS][size];
    Random random = new Random(7);
    for (byte[] payload : payloads) {
      random.nextBytes(payload);
    }
  }

  byte[] payload(long entry) {
    return payloads[(int) (entry % PAYLOADS)];
  }

  /** Writes entries 0..count-1 with a window of asynchronous adds; the ledger stays open. */
  LedgerHandle fill(long count, int window) throws Exception {
    return fill(1, count, window).get(0);
  }

  /** The same with several ledgers, an entry to each in turn; the window is that of all together. */
  List<LedgerHandle> fill(int ledgers, long count, int window) throws Exception {
    List<LedgerHandle> all = new ArrayList<>();
    for (int i = 0; i < ledgers; i++) {
      all.add(create());
    }
    Semaphore outstanding = new Semaphore(window);
    for (long i = 0; i < count; i++) {
      for (LedgerHandle ledger : all) {
        outstanding.acquire();
        ledger.asyncAddEntry(payload(i), (code, handle, entry, context) -> outstanding.release(), null);
      }
    }
    outstanding.acquire(window);
    return all;
  }

  /** Reads 0..count-1 and compares; returns seconds. Throws when an entry is missing or differs. */
  double readBack(long ledger, long count, int size) throws Exception {
    LedgerHandle reader = client.openLedger(ledger, digest(), PASSWORD);
    if (reader.getLastAddConfirmed() != count - 1) {
      throw new IllegalStateException("ledger " + ledger + " ends at " + reader.getLastAddConfirmed() + ", not " + (count - 1));
    }
    int step = Math.max(1, Math.min(1000, (1 << 20) / Math.max(1, size)));
    Semaphore outstanding = new Semaphore(4);
    AtomicLong good = new AtomicLong();
    long start = System.nanoTime();
    for (long first = 0; first < count; first += step) {
      outstanding.acquire();
      reader.asyncReadEntries(first, Math.min(count - 1, first + step - 1), (code, handle, entries, context) -> {
        good.addAndGet(compare(entries));
        outstanding.release();
      }, null);
    }
    outstanding.acquire(4);
    double seconds = (System.nanoTime() - start) / 1e9;
    reader.close();
    if (good.get() != count) {
      throw new IllegalStateException("only " + good.get() + " of " + count + " entries came back as written");
    }
    return seconds;
  }

  private long compare(Enumeration<LedgerEntry> entries) {
    long good = 0;
    while (entries != null && entries.hasMoreElements()) {
      LedgerEntry entry = entries.nextElement();
      ByteBuf body = entry.getEntryBuffer();
      if (body.equals(Unpooled.wrappedBuffer(payload(entry.getEntryId())))) {
        good++;
      }
      body.release();
    }
    return good;
  }

  /** Minimum, median, 99th and 99.9th percentile, in microseconds, as JSON fields. */
  static String percentiles(long[] nanos) {
    long[] sorted = nanos.clone();
    Arrays.sort(sorted);
    int count = sorted.length;
    return String.format(Locale.ROOT, "\"min_us\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f", sorted[0] / 1e3,
        sorted[count / 2] / 1e3, sorted[(int) (count * 0.99)] / 1e3, sorted[(int) (count * 0.999)] / 1e3);
  }

  /** A sorted sample in microseconds, evenly spaced by rank, with the smallest and the largest. */
  static List<Double> quantiles(long[] nanos) {
    long[] sorted = nanos.clone();
    Arrays.sort(sorted);
    int count = Math.min(sorted.length, QUANTILES_MAX);
    List<Double> sample = new ArrayList<>();
    for (long rank = 0; rank < count; rank++) {
      sample.add(sorted[(int) (rank * (sorted.length - 1) / Math.max(1, count - 1))] / 100 / 10.0);
    }
    return sample;
  }
}
