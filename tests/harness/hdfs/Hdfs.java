import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** Runs a name node and a data node of HDFS until standard input ends, and prints their ports. */
public final class Hdfs {
    public static void main(String[] arguments) throws Exception {
        HdfsConfiguration configuration = new HdfsConfiguration();
        configuration.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, arguments[0]);
        try (MiniDFSCluster cluster = new MiniDFSCluster.Builder(configuration).build()) {
            cluster.waitActive();
            System.out.println(cluster.getNameNodePort() + " " + cluster.getNameNode().getHttpAddress().getPort());
            while (System.in.read() >= 0) {
            }
        }
    }
}
