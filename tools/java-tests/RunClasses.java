import org.junit.AssumptionViolatedException;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs test classes; prints a line a test: CLASS, METHOD, passed, failed or assumed, and the first line of the failure. */
public final class RunClasses {
    private RunClasses() {
    }

    public static void main(String[] names) throws Exception {
        JUnitCore core = new JUnitCore();
        core.addListener(new RunListener() {
            private String outcome;
            private String said;

            @Override
            public void testStarted(Description test) {
                outcome = "passed";
                said = "";
            }

            @Override
            public void testFailure(Failure failure) {
                outcome = "failed";
                said = String.valueOf(failure.getException()).lines().findFirst().orElse("");
                failure.getException().printStackTrace();
            }

            @Override
            public void testAssumptionFailure(Failure failure) {
                outcome = failure.getException() instanceof AssumptionViolatedException ? "assumed" : "failed";
            }

            @Override
            public void testFinished(Description test) {
                System.out.println(String.join("\t", "RESULT", test.getClassName(), test.getMethodName(), outcome, said));
                System.out.flush();
            }
        });
        for (String name : names) {
            core.run(Class.forName(name));
        }
        System.exit(0);
    }
}
