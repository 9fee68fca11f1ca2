import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.client.api.AMRMClient;
import org.apache.hadoop.yarn.conf.YarnConfiguration;

/** Ends the application in whose ApplicationMaster this runs: STATUS, DIAGNOSTICS. */
class Finish {
    public static void main(String[] arguments) throws Exception {
        try (AMRMClient<AMRMClient.ContainerRequest> client = AMRMClient.createAMRMClient()) {
            client.init(new YarnConfiguration());
            client.start();
            client.unregisterApplicationMaster(FinalApplicationStatus.valueOf(arguments[0]), arguments[1], "");
        }
    }
}
