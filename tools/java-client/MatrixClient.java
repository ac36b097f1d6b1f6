import java.nio.charset.StandardCharsets;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Writes and reads small ledgers with what every client library from 4.9 on has: the other side of a matrix of versions.
 *
 *   MatrixClient URI write COUNT CELL...       a ledger for each cell; prints "CELL LEDGER"
 *   MatrixClient URI read COUNT CELL=LEDGER... open with recovery, read all; prints "CELL LEDGER ENTRIES"
 *
 * CELL is PROTOCOL:DIGEST:E:QW:QA:END, PROTOCOL v2 or v3, END closed or open. Entry i of a cell is the text CELL/i. A failed
 * cell prints "CELL failed CLASS MESSAGE"; the exit status is that of the last one.
 */
public class MatrixClient {
    private static final byte[] PASSWORD = "secret".getBytes(StandardCharsets.UTF_8);

    public static void main(String[] args) throws Exception {
        int status = 0;
        int count = Integer.parseInt(args[2]);
        for (String protocol : new String[] {"v2", "v3"}) {
            ClientConfiguration conf = new ClientConfiguration();
            conf.setMetadataServiceUri(args[0]);
            conf.setUseV2WireProtocol(protocol.equals("v2"));
            conf.setZkTimeout(60000);
            conf.setReadEntryTimeout(60);
            conf.setAddEntryTimeout(60);
            try (BookKeeper client = BookKeeper.newBuilder(conf).build()) {
                for (int i = 3; i < args.length; i++) {
                    String[] named = args[i].split("=");
                    if (!named[0].startsWith(protocol)) {
                        continue;
                    }
                    try {
                        System.out.println(named[0] + " " + (args[1].equals("write")
                                ? write(client, named[0], count) : read(client, named[0], Long.parseLong(named[1]), count)));
                    } catch (Exception e) {
                        System.out.println(named[0] + " failed " + e.toString().replace('\n', ' '));
                        status = 1;
                    }
                }
            }
        }
        System.exit(status);
    }

    private static String write(BookKeeper client, String cell, int count) throws Exception {
        String[] part = cell.split(":");
        WriteHandle handle = client.newCreateLedgerOp().withDigestType(DigestType.valueOf(part[1])).withPassword(PASSWORD)
                .withEnsembleSize(Integer.parseInt(part[2])).withWriteQuorumSize(Integer.parseInt(part[3]))
                .withAckQuorumSize(Integer.parseInt(part[4])).execute().get();
        for (int i = 0; i < count; i++) {
            handle.append((cell + "/" + i).getBytes(StandardCharsets.UTF_8));
        }
        if (part[5].equals("closed")) {
            handle.close();
        }
        return Long.toString(handle.getId());
    }

    private static String read(BookKeeper client, String cell, long ledger, int count) throws Exception {
        try (ReadHandle handle = client.newOpenLedgerOp().withLedgerId(ledger).withRecovery(true).withPassword(PASSWORD)
                .withDigestType(DigestType.valueOf(cell.split(":")[1])).execute().get()) {
            if (handle.getLastAddConfirmed() != count - 1) {
                throw new IllegalStateException("last add confirmed " + handle.getLastAddConfirmed());
            }
            int read = 0;
            try (LedgerEntries entries = handle.read(0, count - 1)) {
                for (LedgerEntry entry : entries) {
                    String text = new String(entry.getEntryBytes(), StandardCharsets.UTF_8);
                    if (!text.equals(cell + "/" + read)) {
                        throw new IllegalStateException("entry " + read + " is " + text);
                    }
                    read++;
                }
            }
            return ledger + " " + read;
        }
    }
}
