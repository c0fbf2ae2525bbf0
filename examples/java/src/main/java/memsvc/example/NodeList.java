package memsvc.example;

import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.StatusOr;
import java.net.InetSocketAddress;
import java.net.URI;
import java.util.List;

/**
 * A fixed list of nodes, for targets "nodes:///...". It is not needed where a DNS name has the
 * addresses of all nodes: dns:///memory.internal:8848.
 */
final class NodeList extends NameResolverProvider {
  private final List<EquivalentAddressGroup> nodes;

  /** Takes nodes as host:port. */
  NodeList(List<String> nodes) {
    this.nodes = nodes.stream().map(NodeList::group).toList();
  }

  private static EquivalentAddressGroup group(String node) {
    int colon = node.lastIndexOf(':');
    int port = Integer.parseInt(node.substring(colon + 1));
    return new EquivalentAddressGroup(new InetSocketAddress(node.substring(0, colon), port));
  }

  @Override
  public NameResolver newNameResolver(URI target, NameResolver.Args args) {
    return new NameResolver() {
      @Override
      public String getServiceAuthority() {
        return "memsvc";
      }

      @Override
      public void start(Listener2 listener) {
        listener.onResult(
            ResolutionResult.newBuilder().setAddressesOrError(StatusOr.fromValue(nodes)).build());
      }

      @Override
      public void shutdown() {}
    };
  }

  @Override
  public String getDefaultScheme() {
    return "nodes";
  }

  @Override
  protected boolean isAvailable() {
    return true;
  }

  @Override
  protected int priority() {
    return 5;
  }
}
