package org.apache.bookkeeper.test;

import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.Key;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.bookkeeper.bookie.Bookie;
import org.apache.bookkeeper.client.BookKeeperTestClient;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.conf.TestBKConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieServer;
import org.apache.bookkeeper.tls.SecurityException;
import org.apache.zookeeper.ZooKeeper;
import org.junit.After;
import org.junit.Before;
import sun.reflect.ReflectionFactory;

/**
 * Stands before the class of this name in BookKeeper's test jar: its test classes run on Quire's bookies.
 *
 * <p>ZooKeeper runs in this process, as in BookKeeper's own; a bookie is a process of {@code quire bookie}. What a test asks of
 * a bookie's ServerConfiguration becomes options: directory, port, the tables [tls] of a security file. What a test does to
 * the objects of a Java bookie's process cannot be done: such tests are named, with the reason, by
 * {@code tests/interop/test_java_classes.py}.
 *
 * <p>System properties: {@code quire} is the program, {@code quire.directory} where everything is put.
 */
public abstract class BookKeeperClusterTestCase {
    private static final long START_SECONDS = 60;
    private static int made = 0;

    protected final ZooKeeperCluster zkUtil = new ZooKeeperUtil();
    protected ZooKeeper zkc;
    protected String metadataServiceUri;
    protected final List<ServerTester> servers = Collections.synchronizedList(new ArrayList<>());
    protected int numBookies;
    protected BookKeeperTestClient bkc;
    protected final ServerConfiguration baseConf = TestBKConfiguration.newServerConfiguration();
    protected final ClientConfiguration baseClientConf = TestBKConfiguration.newClientConfiguration();

    public BookKeeperClusterTestCase(int numBookies) {
        this.numBookies = numBookies;
    }

    @Before
    public void setUp() throws Exception {
        zkUtil.startCluster();
        zkc = zkUtil.getZooKeeperClient();
        metadataServiceUri = "zk+hierarchical://" + zkUtil.getZooKeeperConnectString() + "/ledgers";
        baseConf.setMetadataServiceUri(metadataServiceUri);
        baseClientConf.setMetadataServiceUri(metadataServiceUri);
        List<ServerTester> starting = new ArrayList<>();
        for (int i = 0; i < numBookies; i++) {
            ServerTester server = new ServerTester(newServerConfiguration());
            server.launch();
            starting.add(server);
        }
        for (ServerTester server : starting) {
            server.await();
            servers.add(server);
        }
        if (numBookies > 0) {
            bkc = new BookKeeperTestClient(baseClientConf, new TestStatsProvider());
        }
    }

    @After
    public void tearDown() throws Exception {
        if (bkc != null) {
            bkc.close();
        }
        for (ServerTester server : servers) {
            server.end();
        }
        servers.clear();
        zkUtil.stopCluster();
    }

    // --- configurations ---------------------------------------------------------------------------------------------

    protected ServerConfiguration newServerConfiguration() throws Exception {
        ServerConfiguration conf = new ServerConfiguration(baseConf);
        Path directory = Path.of(System.getProperty("quire.directory"), "bookie" + made++);
        Files.createDirectories(directory);
        try (ServerSocket free = new ServerSocket(0)) {
            conf.setBookiePort(free.getLocalPort());
        }
        conf.setJournalDirName(directory.toString());
        conf.setLedgerDirNames(new String[] {directory.toString()});
        return conf;
    }

    protected ClientConfiguration newClientConfiguration() {
        return new ClientConfiguration(baseConf);
    }

    protected ServerConfiguration confByIndex(int index) {
        return servers.get(index).conf;
    }

    // --- bookies ----------------------------------------------------------------------------------------------------

    public BookieId getBookie(int index) {
        return servers.get(index).id();
    }

    protected BookieServer serverByIndex(int index) {
        return servers.get(index).getServer();
    }

    protected int bookieCount() {
        return servers.size();
    }

    private ServerTester named(BookieId id) {
        return servers.stream().filter(server -> server.id().equals(id)).findFirst().orElseThrow();
    }

    public ServerConfiguration killBookie(BookieId id) throws Exception {
        return killBookie(servers.indexOf(named(id)));
    }

    public ServerConfiguration killBookie(int index) throws Exception {
        ServerTester server = servers.remove(index);
        server.end();
        return server.conf;
    }

    public CountDownLatch sleepBookie(BookieId id, int seconds) throws Exception {
        CountDownLatch asleep = new CountDownLatch(1);
        CountDownLatch awake = new CountDownLatch(1);
        sleepBookie(id, asleep, awake);
        Thread alarm = new Thread(() -> {
            try {
                TimeUnit.SECONDS.sleep(seconds);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
            awake.countDown();
        });
        alarm.setDaemon(true);
        alarm.start();
        return asleep;
    }

    public void sleepBookie(BookieId id, CountDownLatch awake) throws InterruptedException, IOException {
        sleepBookie(id, new CountDownLatch(1), awake);
    }

    public void sleepBookie(BookieId id, CountDownLatch asleep, CountDownLatch awake)
            throws InterruptedException, IOException {
        ServerTester server = named(id);
        server.signal("STOP");
        asleep.countDown();
        Thread waits = new Thread(() -> {
            try {
                awake.await();
                server.signal("CONT");
            } catch (InterruptedException | IOException failed) {
                Thread.currentThread().interrupt();
            }
        });
        waits.setDaemon(true);
        waits.start();
    }

    public void restartBookies() throws Exception {
        restartBookies(conf -> conf);
    }

    public void restartBookies(Function<ServerConfiguration, ServerConfiguration> change) throws Exception {
        List<ServerConfiguration> confs = new ArrayList<>();
        while (!servers.isEmpty()) {
            confs.add(killBookie(0));
        }
        for (ServerConfiguration conf : confs) {
            startAndAddBookie(change.apply(conf));
        }
    }

    public int startNewBookie() throws Exception {
        return startAndAddBookie(newServerConfiguration()).conf.getBookiePort();
    }

    protected ServerTester startAndAddBookie(ServerConfiguration conf) throws Exception {
        ServerTester server = new ServerTester(conf);
        server.launch();
        server.await();
        servers.add(server);
        return server;
    }

    /** One bookie: a process of Quire's. */
    public class ServerTester {
        private final ServerConfiguration conf;
        private final Path directory;
        private Process process;

        ServerTester(ServerConfiguration conf) {
            this.conf = conf;
            this.directory = Path.of(conf.getJournalDirNames()[0]);
        }

        /** What its address is: the id that BookKeeper's tests expect. */
        BookieId id() {
            return BookieId.parse("127.0.0.1:" + conf.getBookiePort());
        }

        void launch() throws Exception {
            List<String> command = new ArrayList<>(Arrays.asList(
                    System.getProperty("quire"), "bookie", "--dir", directory.resolve("data").toString(),
                    "--cluster", metadataServiceUri, "--listen", "127.0.0.1:" + conf.getBookiePort(),
                    "--create", "--id-from-address", "--collect-every", "1", "--segment-bytes", "4194304"));
            if (conf.getTLSProviderFactoryClass() != null) {
                command.addAll(List.of("--security", security()));
            }
            process = new ProcessBuilder(command)
                    .redirectErrorStream(true)
                    .redirectOutput(ProcessBuilder.Redirect.appendTo(log()))
                    .start();
        }

        /** Wait until it is registered; one that does not start is a SecurityException where TLS is asked for. */
        void await() throws Exception {
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(START_SECONDS);
            while (zkc.exists("/ledgers/available/" + id(), false) == null) {
                if (!process.isAlive()) {
                    String said = "the bookie did not start: " + Files.readString(log().toPath());
                    throw conf.getTLSProviderFactoryClass() == null
                            ? new IOException(said) : new SecurityException(said);
                }
                if (System.nanoTime() > end) {
                    throw new IOException("the bookie is not registered: " + Files.readString(log().toPath()));
                }
                Thread.sleep(20);
            }
            if (conf.getTLSCertFilesRefreshDurationSeconds() > 0) {
                renewing();
            }
        }

        private File log() {
            return directory.resolve("log").toFile();
        }

        void end() throws Exception {
            if (process.isAlive()) {
                signal("CONT");
                process.destroy();
                if (!process.waitFor(START_SECONDS, TimeUnit.SECONDS)) {
                    process.destroyForcibly().waitFor();
                }
            }
        }

        void signal(String name) throws IOException {
            try {
                new ProcessBuilder("kill", "-" + name, Long.toString(process.pid())).start().waitFor();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }

        public BookieServer getServer() {
            try {
                Named server = (Named) ReflectionFactory.getReflectionFactory()
                        .newConstructorForSerialization(Named.class, Object.class.getDeclaredConstructor())
                        .newInstance();
                server.tester = this;
                return server;
            } catch (ReflectiveOperationException impossible) {
                throw new IllegalStateException(impossible);
            }
        }

        // --- TLS ----------------------------------------------------------------------------------------------------

        /** The operator who tells a bookie of renewed files; Java's bookies look for themselves. */
        private void renewing() {
            Process of = process;
            Thread operator = new Thread(() -> {
                long seen = 0;
                try {
                    while (of.isAlive()) {
                        Thread.sleep(500);
                        long changed = new File(conf.getTLSKeyStore()).lastModified();
                        if (changed != seen) {
                            seen = changed;
                            security();
                            signal("HUP");
                        }
                    }
                } catch (Exception ended) {
                    Thread.currentThread().interrupt();
                }
            });
            operator.setDaemon(true);
            operator.start();
        }

        /** What the configuration says of TLS, as the file that Quire's bookies read. */
        private String security() throws Exception {
            StringBuilder text = new StringBuilder("[tls]\n");
            if (conf.getTLSKeyStore() != null) {
                text.append("certificate = \"").append(certificates(true)).append("\"\n");
                text.append("key = \"").append(key()).append("\"\n");
            }
            boolean roles = conf.getAuthorizedRoles() != null && conf.getAuthorizedRoles().length > 0
                    && !conf.getAuthorizedRoles()[0].isEmpty();
            text.append("ca = \"").append(certificates(false)).append("\"\n");
            text.append("require_client_certificate = ").append(conf.getTLSClientAuthentication()).append("\n");
            text.append("allow_plain = ").append(!roles).append("\n");
            if (roles) {
                text.append("roles = [\"").append(String.join("\", \"", conf.getAuthorizedRoles())).append("\"]\n");
            }
            return written("security.toml", text.toString());
        }

        private String certificates(boolean own) throws Exception {
            String type = own ? conf.getTLSKeyStoreType() : conf.getTLSTrustStoreType();
            if ("PEM".equals(type)) {
                return own ? conf.getTLSCertificatePath() : conf.getTLSTrustStore();
            }
            KeyStore store = own
                    ? loaded(type, conf.getTLSKeyStore(), conf.getTLSKeyStorePasswordPath())
                    : loaded(type, conf.getTLSTrustStore(), conf.getTLSTrustStorePasswordPath());
            StringBuilder text = new StringBuilder();
            for (String alias : Collections.list(store.aliases())) {
                Certificate[] chain = own ? store.getCertificateChain(alias) : null;
                for (Certificate one : chain == null ? new Certificate[] {store.getCertificate(alias)} : chain) {
                    text.append(pem("CERTIFICATE", one.getEncoded()));
                }
            }
            return written(own ? "certificate.pem" : "ca.pem", text.toString());
        }

        private String key() throws Exception {
            if ("PEM".equals(conf.getTLSKeyStoreType())) {
                return conf.getTLSKeyStore();
            }
            String path = conf.getTLSKeyStorePasswordPath();
            KeyStore store = loaded(conf.getTLSKeyStoreType(), conf.getTLSKeyStore(), path);
            for (String alias : Collections.list(store.aliases())) {
                Key key = store.getKey(alias, password(path));
                if (key != null) {
                    return written("key.pem", pem("PRIVATE KEY", key.getEncoded()));
                }
            }
            throw new SecurityException("no key in " + conf.getTLSKeyStore());
        }

        private KeyStore loaded(String type, String path, String passwordPath) throws Exception {
            KeyStore store = KeyStore.getInstance(type);
            try (FileInputStream in = new FileInputStream(path)) {
                store.load(in, password(passwordPath));
            } catch (IOException unreadable) {
                throw new SecurityException("cannot read " + path, unreadable);
            }
            return store;
        }

        private char[] password(String path) throws IOException {
            return path == null || path.isEmpty() ? new char[0] : Files.readString(Path.of(path)).trim().toCharArray();
        }

        private String pem(String kind, byte[] content) {
            String text = Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(content);
            return "-----BEGIN " + kind + "-----\n" + text + "\n-----END " + kind + "-----\n";
        }

        private String written(String name, String text) throws IOException {
            Path path = directory.resolve(name);
            Files.write(path, text.getBytes(StandardCharsets.UTF_8));
            Files.setPosixFilePermissions(path, PosixFilePermissions.fromString("rw-------"));
            return path.toString();
        }
    }

    /** As much of Java's server as tests ask of one: its id, its end, a bookie that collects by itself. */
    static class Named extends BookieServer {
        private ServerTester tester;

        private Named() throws Exception {
            super(null, null, null, null, null);
        }

        @Override
        public BookieId getBookieId() {
            return tester.id();
        }

        @Override
        public synchronized void shutdown() {
            try {
                tester.end();
            } catch (Exception failed) {
                throw new IllegalStateException(failed);
            }
        }

        @Override
        public Bookie getBookie() {
            return (Bookie) Proxy.newProxyInstance(
                    Bookie.class.getClassLoader(), new Class<?>[] {Bookie.class}, (proxy, method, given) -> {
                        if ("getLedgerStorage".equals(method.getName())) {
                            return null; // a test would start a collection: ours collect every second
                        }
                        throw new UnsupportedOperationException(method.getName());
                    });
        }
    }
}
